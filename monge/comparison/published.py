"""The published tables that `monge reproduce` repeats: data, models, budgets, figures and sources.

A table is a list of fits. Each fit names the data, the model, what is scored and, beside it, what
others have published. Budgets are those of one thread. `departs` says how the protocol here
differs from that of the papers, so that nobody has to guess; where a figure was not published but
measured by a plain script, its source says that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import DataError, UsageError, nearest
from ..data.builtin.catalogue import locate, search_path
from ..train.budget import Budget

SOURCES = {
    "id-spn": "Rooshenas and Lowd (2014), ICML",
    "many": "the same figure in many papers on these sets",
    "script": "a plain script on one thread, not published",
    "generative": "the repository pytorch-generative, on a GPU",
    "nice": "Dinh, Krueger and Bengio (2015), ICLR workshop",
    "multi-scale": "about what multi-scale flows reach on a GPU",
    "dropout": "Gal and Ghahramani (2016), ICML, from the authors' logs",
    "linear": "Zeng, Chen, Zhang and Xu (2023), AAAI",
    "informer": "Zhou et al. (2021), AAAI",
    "nanogpt": "the repository nanoGPT, on a GPU",
    "counts": "counts of six characters, a plain script, not published",
    "makemore": "about what small transformers reach in the lectures of makemore",
    "tutorials": "public tutorials on a GPU, lower-cased and tokenised sentences",
    "imputers": "documentation of other packages, means of 3 other masks and 5 draws",
    "m2": "Kingma, Rezende, Mohamed and Welling (2014), NeurIPS",
    "ladder": "Rasmus, Valpola, Honkala, Berglund and Raiko (2015), NeurIPS",
    "pseudo": "Lee (2013), ICML workshop",
    "truth": "the density that the data are drawn from",
    "peers": "fitted to the same rows by us for the same time, not published",
}
"""Where figures come from, by the names that figures use."""


@dataclass(frozen=True)
class Figure:
    """What somebody else reached."""

    by: str
    metric: str
    value: float
    source: str
    stderr: float | None = None


@dataclass(frozen=True)
class Fit:
    """One line of a table: a model fitted to data once, or once for each split or mask."""

    data: str
    model: str
    budget: str
    metrics: tuple[str, ...]
    published: tuple[Figure, ...] = ()
    settings: tuple[str, ...] = ()
    scoring: tuple[str, ...] = ()
    """Settings of likelihoods and predictions."""
    target: str | None = None
    ensemble: int = 0
    repeats: int = 1
    """Fits; `{k}` in settings is the number of each."""
    rows: int | None = None
    """Test rows that are scored at most; None: all."""
    label: str = ""
    """What tells it from other lines of the same model and data."""
    hidden: float = 0.0
    """Share of the cells that are hidden before the fit, and filled in after it."""

    @property
    def name(self) -> str:
        """Such as nltcs-made: what results and folders call it."""
        data = Path(self.data.partition("+")[0]).name.partition(".")[0]
        return "-".join(filter(None, (data, self.model.rpartition(".")[2], self.label)))

    @property
    def seconds(self) -> float:
        """Seconds of training at most."""
        return Budget.read(self.budget).seconds * self.repeats


@dataclass(frozen=True)
class Table:
    """Fits whose figures stand beside published ones."""

    name: str
    title: str
    fits: tuple[Fit, ...]
    departs: str
    recipes: tuple[Fit, ...] = ()
    """Fits of every other folder of data beside those named; their data is `{folder}`."""

    @property
    def data(self) -> list[str]:
        """The data that the fits need."""
        return list(dict.fromkeys(fit.data for fit in self.fits))

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(fit.model for fit in self.fits))

    @property
    def published(self) -> dict[str, list[tuple[str, Figure]]]:
        """Figures with their data, by source."""
        found: dict[tuple[str, Figure], str] = {}
        for fit in self.fits:
            for figure in fit.published:
                found.setdefault((fit.data, figure), f"{short(fit.data)} {fit.label}".rstrip())
        sources: dict[str, list[tuple[str, Figure]]] = {}
        for (_, figure), data in found.items():
            sources.setdefault(figure.source, []).append((data, figure))
        return sources

    @property
    def seconds(self) -> float:
        return sum(fit.seconds for fit in self.fits)

    def missing(self) -> list[str]:
        """The data that are not on this machine."""
        return [name for name in self.data if not is_here(name)]

    def here(self, only: Sequence[str] = ()) -> list[Fit]:
        """The fits whose data are on this machine, other folders of the same form included; `only`
        keeps those whose names are or else contain one of these words."""
        fits = [
            *self.fits,
            *(each for folder in self.folders() for each in self.by_recipe(folder)),
        ]
        names = {fit.name for fit in fits}
        chosen = set() if only else names
        for word in only:
            meant = {word} if word in names else {name for name in names if word in name}
            if not meant:
                raise UsageError(
                    f"expected a part of the name of a fit of {self.name}, found {word!r}"
                    f"{nearest(word, sorted(names))}"
                )
            chosen |= meant
        found = [fit for fit in fits if fit.name in chosen and is_here(fit.data)]
        if not found:
            raise DataError(
                f"expected data of {self.name} ({', '.join(self.missing())}) in the folders of "
                "MONGE_DATA, found none; name their folder with --data"
            )
        return found

    def folders(self) -> list[str]:
        """Folders of data beside those that are named, if this table takes any."""
        if not self.recipes:
            return []
        parent = Path(self.data[0]).parent
        below = [place / parent for place in search_path() if (place / parent).is_dir()]
        names = {each.name for place in below for each in place.iterdir() if each.is_dir()}
        return sorted(f"{parent}/{name}" for name in names if f"{parent}/{name}" not in self.data)

    def by_recipe(self, folder: str) -> list[Fit]:
        return [replace(fit, data=folder) for fit in self.recipes]


def short(data: str) -> str:
    return Path(data).name


def is_here(data: str) -> bool:
    try:
        locate(data)
    except DataError:
        return False
    return True


# density estimation on binary data


def debd(name: str, independent: float, tree: float, made: float, spn: float) -> list[Fit]:
    metric = ("log_likelihood",)
    strong = Figure("ID-SPN", *metric, spn, "id-spn")
    plain = Figure("MADE, 500 units", *metric, made, "script")
    data = f"debd/{name}"
    best = {"dna": "3m", "jester": "5m"}.get(name, "2m")
    return [
        Fit(
            data,
            "independent",
            "1m",
            metric,
            (Figure("independent", *metric, independent, "many"),),
        ),
        Fit(data, "chow_liu", "1m", metric, (Figure("Chow-Liu", *metric, tree, "many"),)),
        Fit(data, "made", best, metric, (strong, plain)),
        Fit(data, "nade", best, metric, (strong,)),
    ]


DEBD = Table(
    "debd",
    "binary tables of the density estimation benchmark: test log-likelihood, nats per row",
    (
        *debd("nltcs", -9.23, -6.76, -5.99, -6.02),
        *debd("plants", -31.27, -16.52, -12.33, -12.54),
        *debd("jester", -63.88, -58.23, -51.55, -52.86),
        *debd("dna", -100.39, -87.66, -83.31, -81.21),
        *(
            Fit(
                "debd/nltcs",
                model,
                "2m",
                ("log_likelihood",),
                (Figure("ID-SPN", "log_likelihood", -6.02, "id-spn"),),
            )
            for model in ("energy.rbm", "diffusion.d3pm")
        ),
    ),
    "The files train, valid and test are those of the benchmark, and valid rows serve early "
    "stopping only. The papers train to convergence; here a fit ends after its budget at the "
    "latest, and model and training have the default settings of Monge. The value of d3pm is a "
    "lower bound; that of rbm is exact where log Z is summed, else an estimate.",
    recipes=tuple(
        Fit("", model, budget, ("log_likelihood",))
        for model, budget in (("independent", "1m"), ("chow_liu", "1m"), ("made", "5m"))
    ),
)


# pictures


def nats(model: str, budget: str, published: float | None = None, **more: object) -> Fit:
    figures = (
        (Figure(model, "log_likelihood", published, "generative"),)
        if published is not None
        else ()
    )
    fit = Fit("mnist+binarise", model, budget, ("log_likelihood",), figures)
    return replace(fit, **more)  # type: ignore[arg-type]


MNIST_BINARY = Table(
    "mnist-binary",
    "MNIST binarised afresh in every epoch: test log-likelihood, nats per picture",
    (
        nats("fvsbn", "8m", -96.6),
        nats("nade", "15m", -85.7),
        nats("made", "15m", -84.9),
        nats("pixelcnn", "15m", -81.5),
        nats("vae", "20m", -86.8, scoring=("samples=100",)),
        nats("hvae", "20m", scoring=("samples=100",)),
        nats("mhvae", "20m", scoring=("samples=100",)),
    ),
    "Training pictures are binarised anew whenever they are read, test pictures once by a fixed "
    "seed; 6000 of the 60000 training pictures serve early stopping. The published figures took "
    "hours of a GPU; here a fit has at most 20 minutes of one thread. Latent models are scored by "
    "the bound of 100 importance samples, a lower bound.",
)


def levels(
    model: str, budget: str, figures: tuple[Figure, ...] = (), rows: int | None = None
) -> Fit:
    return Fit("mnist", model, budget, ("bits_per_dim",), figures, rows=rows)


FLOWS = (
    Figure("NICE", "bits_per_dim", 4.34, "nice"),
    Figure("multi-scale flows", "bits_per_dim", 1.1, "multi-scale"),
)
MNIST_LEVELS = Table(
    "mnist-levels",
    "MNIST with its 256 levels: test bits per dimension",
    (
        levels("coupling", "20m", FLOWS),
        levels("glow", "20m", FLOWS),
        levels("cnf", "20m", FLOWS, 500),
        levels("ddpm", "20m", rows=500),
        levels("vdm", "20m", rows=500),
        levels("vqvae", "20m"),
        levels("latent_diffusion", "20m", rows=500),
    ),
    "All figures are lower bounds of the log-likelihood of levels, by uniform or learned "
    "dequantisation (flows), the variational bound (diffusion) or one sequence of codes (vqvae), "
    "so bits are at most these. Budgets are 20 minutes of one thread where the papers train for "
    "hours on GPUs. cnf and diffusion are scored on the first 500 test pictures.",
)
QUALITY = ("coverage", "c2st")
"""Of samples: near how many real rows one is, and how well a classifier tells them apart."""
PICTURES = Table(
    "pictures",
    "10000 colour pictures of 32x32 pixels: test bits per dimension, coverage of real pictures by "
    "samples, and accuracy of a classifier between them",
    tuple(
        Fit("cifar", model, "20m", ("bits_per_dim", *quality), rows=200)
        for model, quality in (
            ("flow.glow", ()),
            ("pixelcnn", ()),
            ("vdm", ()),
            ("ddpm", QUALITY),
            ("latent_diffusion", QUALITY),
        )
    ),
    "The pictures are JPEG files of CIFAR-10, which smooths them: bits are not comparable with "
    "those of papers, which none is beside. 20 minutes of one thread each; 200 test pictures are "
    "scored. All but pixelcnn give lower bounds.",
)
FEW_LABELS = Table(
    "few-labels",
    "MNIST with 100 labels, ten of each digit, and the other pictures without: test accuracy",
    tuple(
        Fit(
            "mnist",
            model,
            "15m",
            ("accuracy",),
            figures,
            (*settings, "data.labels=100"),
            target="label",
            label=label,
        )
        for model, label, settings, figures in (
            ("predict.cnn", "", (), ()),
            (
                "predict.semi",
                "",
                (),
                (Figure("convolutional ladder network", "accuracy", 0.9911, "ladder", 0.0050),),
            ),
            (
                "predict.semi",
                "pseudo_label",
                ("method=pseudo_label",),
                (Figure("pseudo-labels, a dense network", "accuracy", 0.8385, "pseudo"),),
            ),
            (
                "predict.m2",
                "",
                (),
                (
                    Figure("M2", "accuracy", 0.8803, "m2", 0.0171),
                    Figure("M1 and M2", "accuracy", 0.9667, "m2", 0.0014),
                ),
            ),
        )
    ),
    "One draw of the labels where the papers have ten. predict.semi augments pictures by shifts, "
    "rotations and cut-outs, which the papers beside it do not do; predict.cnn has the labelled "
    "pictures alone. 6000 of the training pictures are held out with their labels: they choose "
    "the weights of predict.cnn and predict.m2 and nothing of predict.semi. 15 minutes of one "
    "thread each.",
)
LIKELIHOODS = {
    "baseline": ("independent", "chow_liu", "gaussian", "mixture"),
    "autoregressive": (
        "deep_nade",
        "fvsbn",
        "gpt",
        "made",
        "nade",
        "pixelcnn",
        "pixelrnn",
        "wavenet",
    ),
    "diffusion": ("d3pm", "ddpm", "score_sde", "vdm"),
    "energy": ("ebm",),
    "flow": ("cnf", "coupling", "glow", "iaf", "maf", "residual"),
    "latent": ("hvae", "latent_diffusion", "mhvae", "stcn", "vae", "vqvae", "vrnn"),
    "sequence": ("rnn", "ssm"),
}
"""Models that have likelihoods of digits, by family."""
SAMPLERS = {
    "adversarial": ("dcgan", "gan", "wgan"),
    "diffusion": ("consistency", "distilled"),
    "transport": ("sinkhorn_generator",),
}
"""Those that only sample them."""
DIGITS_PUBLISHED = {"independent": 2.43, "made": 2.07, "pixelcnn": 1.74}


def digits(family: str, name: str) -> Fit:
    known = DIGITS_PUBLISHED.get(name)
    figures = () if known is None else (Figure(name, "bits_per_dim", known, "script"),)
    metrics: tuple[str, ...] = ("energy_distance",)
    if name not in SAMPLERS.get(family, ()):
        metrics = ("bits_per_dim", *metrics)
    return Fit("digits", f"{family}.{name}", "2m", metrics, figures)


DIGITS = Table(
    "digits",
    "the 8x8 digits of scikit-learn, every model that takes them at equal time: test bits per "
    "dimension, and the energy distance of samples from test rows",
    tuple(
        digits(family, name)
        for listed in (LIKELIHOODS, SAMPLERS)
        for family, names in listed.items()
        for name in names
    ),
    "No paper has this table; figures beside ours are those of plain scripts of a few minutes. "
    "Every model has two minutes of one thread and its default settings. Exact values and bounds "
    "stand in one column; `kind` in the results tells them apart.",
)


# regression

DROPOUT = {  # error, its standard error; log-likelihood, its standard error
    "boston": (2.90, 0.18, -2.40, 0.04),
    "concrete": (4.82, 0.16, -2.93, 0.02),
    "energy": (0.54, 0.06, -1.21, 0.01),
    "yacht": (0.67, 0.05, -1.25, 0.01),
}
TUNED = (
    "spread=constant",
    "members=1",
    "net.activation=gelu",
    "net.width=100",
    "net.dropout=0.1",
    "train.optimiser=adamw",
    "train.lr=3e-3",
    "train.weight_decay=0.01",
    "train.ema_decay=0",
    "train.batch_size=64",
    "train.schedule=cosine",
    "train.eval_every=1000000",
)
"""A small smooth network with one scale for all rows, trained to the end on all rows but a few:
the dozens that early stopping would need are worth more as training rows."""


def regression(label: str, **more: object) -> tuple[Fit, ...]:
    fits = []
    for name, (rmse, rmse_error, score, score_error) in DROPOUT.items():
        figures = (
            Figure("MC dropout", "rmse", rmse, "dropout", rmse_error),
            Figure("MC dropout", "log_likelihood", score, "dropout", score_error),
        )
        fit = Fit(
            f"uci/{name}", "predict.mlp", "1m", ("rmse", "log_likelihood"), figures, repeats=20
        )
        fits.append(replace(fit, label=label, **more))  # type: ignore[arg-type]
    return tuple(fits)


UCI = Table(
    "uci",
    "regression over the 20 canonical splits of four UCI tables: error and log-likelihood",
    (
        *regression("", settings=("data.split={k}",)),
        *regression(
            "tuned",
            settings=(*TUNED, "data.valid=0.02", "train.max_steps=4000", "data.split={k}"),
            scoring=("passes=20",),
            ensemble=5,
            budget="5m",
        ),
    ),
    "The lines without a mark have the default settings of Monge. The tuned ones have settings of "
    "their own, the same for all four tables, an ensemble of five and dropout in prediction. Gal "
    "and Ghahramani searched dropout and noise for each split on validation rows, and predict "
    "with one network.",
)


# series

LINEAR = {
    96: (0.374, 0.375, 0.865),
    192: (0.408, 0.405, 1.008),
    336: (0.429, 0.439, 1.107),
    720: (0.440, 0.472, 1.181),
}
ETTH1 = Table(
    "etth1",
    "ETTh1, 96 to 720 hours ahead: mean squared error in standard deviations of training hours",
    tuple(
        Fit(
            "ett/ETTh1.csv",
            "sequence.direct_forecast",
            "1m",
            ("mse", "mae", "coverage_0.8"),
            tuple(
                Figure(by, "mse", value, source)
                for by, value, source in zip(
                    ("NLinear", "DLinear", "Informer"),
                    values,
                    ("linear", "linear", "informer"),
                    strict=True,
                )
            ),
            (f"data.horizon={horizon}", "data.lookback=336", "data.borders=8640,2880,2880"),
            label=str(horizon),
        )
        for horizon, values in LINEAR.items()
    ),
    "As in the papers: the first 8640, 2880 and 2880 hours, standardised by training hours, every "
    "window of the test hours, all channels. The lookback is 336 hours, that of NLinear and "
    "DLinear; Informer chose its own. One fit each, where the papers report one too.",
)


# text and sound

SHAKESPEARE = Table(
    "shakespeare",
    "the plays as one text of characters: nats per character of the last tenth",
    (
        Fit(
            "shakespeare",
            "gpt",
            "15m",
            ("nats_per_token",),
            (
                Figure("nanoGPT", "nats_per_token", 1.47, "nanogpt"),
                Figure("nanoGPT, its settings for a processor", "nats_per_token", 1.88, "nanogpt"),
                Figure("counts of six characters", "nats_per_token", 1.698, "counts"),
            ),
        ),
        Fit("shakespeare", "ssm", "15m", ("nats_per_token",)),
    ),
    "nanoGPT reports its best value on random windows of the last tenth after training on a GPU; "
    "here all of the last tenth is scored once, in windows that begin without a past, and the "
    "tenth before it serves early stopping. 15 minutes of one thread each.",
)
NAMES = Table(
    "names",
    "32033 first names: nats per character, ends included",
    (
        Fit(
            "names",
            "gpt",
            "3m",
            ("nats_per_token",),
            (Figure("a small transformer", "nats_per_token", 1.92, "makemore"),),
        ),
    ),
    "A random tenth of the names is the test, not the split of the lectures.",
)
BLEU = (
    Figure("attention RNN", "bleu", 28.0, "tutorials"),
    Figure("convolutional", "bleu", 34.0, "tutorials"),
    Figure("Transformer", "bleu", 36.5, "tutorials"),
)
MULTI30K = Table(
    "multi30k",
    "German to English, test set of 2016: BLEU",
    (
        Fit("multi30k", "transformer", "30m", ("bleu",), BLEU),
        Fit("multi30k", "seq2seq", "12m", ("bleu",), BLEU),
    ),
    "Ours is cased BLEU as sacrebleu computes it, on whole sentences; the published figures are "
    "on lower-cased tokens, which reads two to four points higher.",
)
SPEECH = Table(
    "speech",
    "1500 spoken digits, 8 kHz, 8-bit mu-law: bits per sample",
    (
        Fit(
            "speech+mulaw",
            "wavenet",
            "15m",
            ("bits_per_dim",),
            (
                Figure("independent samples", "bits_per_dim", 7.48, "script"),
                Figure("a table of pairs", "bits_per_dim", 5.92, "script"),
                Figure("WaveNet", "bits_per_dim", 5.15, "script"),
            ),
        ),
        Fit("speech+mulaw", "ssm", "15m", ("bits_per_dim",)),
    ),
    "No paper has this table; utterances are split at random, so that speakers are known.",
)


# points and tables

TOYS = Table(
    "toys",
    "points in the plane: test log-likelihood, nats, and the distance of samples",
    tuple(
        Fit(
            data,
            model,
            "40s",
            ("log_likelihood", "energy_distance"),
            (Figure("the truth", "log_likelihood", -3.466, "truth"),)
            if data == "checkerboard"
            else (),
        )
        for data in ("checkerboard", "eight_gaussians", "moons", "pinwheel")
        for model in ("mixture", "flow.coupling", "flow.maf", "flow.cnf", "ddpm", "vdm")
    ),
    "No paper has this table: papers show pictures of such points. 40 seconds of one thread each; "
    "the values of diffusion are lower bounds.",
)
MASKED = {
    "iris": (0.0716, 0.0823, 0.0927),
    "wine": (0.1064, 0.1122, 0.1493),
    "breast_cancer": (0.0364, 0.0398, 0.0490),
}
COMPLETION = Table(
    "completion",
    "a fifth of the cells hidden at random and filled in: mean absolute error in [0, 1]",
    tuple(
        Fit(
            data,
            model,
            "1m",
            ("absolute_error",),
            tuple(
                Figure(by, "absolute_error", value, "imputers")
                for by, value in zip(("MissForest", "miceforest", "GAIN"), values, strict=True)
            ),
            settings,
            repeats=5,
            hidden=0.2,
        )
        for data, values in MASKED.items()
        for model, settings in (("gaussian", ()), ("mixture", ("components=5", "shrink=10")))
    ),
    "Every number is scaled to [0, 1]; a model is fitted to all rows without the hidden cells, "
    "and a cell is filled in with the median of 100 draws. Five masks of our own, not those of "
    "the packages. The settings of the mixture are one of those that "
    "`python -m benchmarks.completion` chooses among for each mask, which does better.",
)
PEER_F1 = {"TVAE": (0.628, 16.9, 28.8), "ctgan": (0.030, 16.5, 29.1)}
GENERATION = Table(
    "generation",
    "adult, 15 mixed columns: how samples compare with test rows",
    tuple(
        Fit(
            "adult",
            model,
            "4m",
            ("log_likelihood", "marginals", "pairs", "detection_auc"),
            tuple(
                Figure(by, metric, value / 100, "peers")
                for by, (_, one, two) in PEER_F1.items()
                for metric, value in (("marginals", one), ("pairs", two))
            ),
        )
        for model in ("made", "flow.coupling", "flow.cnf", "ddpm")
    ),
    "`python -m benchmarks.tables --ctgan` fits TVAE and ctgan for the same time; papers on them "
    "publish no such distances of this table. Here as many samples as `monge evaluate` takes "
    "(2000) are compared with test rows, there as many as training rows: few samples show their "
    "own noise, so ours read higher here.",
)

TABLES = {
    table.name: table
    for table in (
        DEBD,
        MNIST_BINARY,
        MNIST_LEVELS,
        PICTURES,
        DIGITS,
        FEW_LABELS,
        UCI,
        ETTH1,
        SHAKESPEARE,
        NAMES,
        MULTI30K,
        SPEECH,
        TOYS,
        COMPLETION,
        GENERATION,
    )
}


def find(name: str) -> Table:
    """A table by its name."""
    if name not in TABLES:
        raise UsageError(f"there is no table {name!r}{nearest(name, TABLES)}")
    return TABLES[name]
