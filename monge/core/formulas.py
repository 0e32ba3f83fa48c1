r"""The formulas of docstrings, which are TeX, as text: $\prod_t p(x_t)$ as ∏_t p(x_t)."""

from __future__ import annotations

import re

NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi pi rho sigma "
    "varsigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega prod sum "
    "int partial nabla mid le ge ne in to sim approx propto cdot odot times infty leftarrow top "
    "rvert lvert langle rangle"
)
SIGNS = "αβγδεεζηθκλμνξπρσςτφφχψωΓΔΘΛΣΦΨΩ∏∑∫∂∇|≤≥≠∈→∼≈∝·⊙×∞←⊤||⟨⟩"  # noqa: RUF001
SYMBOLS = dict(zip(NAMES.split(), SIGNS, strict=True))
MARKS = {
    "hat": "\u0302",
    "bar": "\u0304",
    "dot": "\u0307",
    "tilde": "\u0303",
    "overrightarrow": "\u20d7",
    "overleftarrow": "\u20d6",
}
"""Combining characters after a letter."""
STYLES = "mathrm|mathcal|mathbb|mathbf|text|operatorname|textstyle|left|right"


def as_text(text: str) -> str:
    """Text with its formulas as they can be read in a line."""
    return re.sub(r"\$([^$]+)\$", lambda found: formula(found[1]), text)


def formula(tex: str) -> str:
    tex = re.sub(rf"\\(?:{STYLES})\b\s*(?:\{{([^{{}}]*)\}})?", lambda found: found[1] or "", tex)
    tex = re.sub(
        rf"\\({'|'.join(MARKS)})\b\s*(\{{\\?\w+\}}|\\?\w)",
        lambda found: found[2].strip("{}") + MARKS[found[1]],
        tex,
    )
    tex = re.sub(r"\\([a-zA-Z]+)", lambda found: SYMBOLS.get(found[1], found[0]), tex)
    tex = re.sub(r"\\[,;!: ] ?", " ", tex).replace("\\|", "‖")
    for _ in range(3):  # from the innermost braces outwards
        tex = re.sub(
            r"\\t?frac\s*(\{[^{}]*\}|\w)\s*(\{[^{}]*\}|\w)",
            lambda found: f"{grouped(found[1])}/{grouped(found[2])}",
            tex,
        )
        tex = re.sub(r"\\sqrt\s*(\{[^{}]*\}|\w)", lambda found: f"√{grouped(found[1])}", tex)
        tex = re.sub(r"([_^])(\{[^{}]*\})", lambda found: found[1] + grouped(found[2]), tex)
    return tex.replace("\\{", "{").replace("\\}", "}").replace("\\", "")


def grouped(part: str) -> str:
    """An argument without its braces; in parentheses if it has several parts."""
    inner = part.strip("{}")
    is_one = inner.isalnum() or len(inner) == 1 or (inner[0] + inner[-1] == "()")
    return inner if is_one else f"({inner})"
