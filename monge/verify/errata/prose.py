"""Errata that say nothing that could be computed: where each stands, what is right, and why no
control holds it."""

from __future__ import annotations

NOTATION = "a slip of notation"
WORDING = "a matter of words"
OPINION = "a claim or an advice, not an equation"
LOST = "a figure or a listing"

PROSE = {
    "R29": ("002:214-220", "phi where theta stands, and no mean over a mean of draws", NOTATION),
    "R69": ("002:399", "GANs are consistent under ideal conditions only", OPINION),
    "R71": ("002:401", "no batch norm at the output of G nor at the input of D", OPINION),
    "R75": ("003:248-249", "np.ones((N, 1)) where np.ones(N, 1) stands", LOST),
    "R85": ("003:729-731", "x_(t-1) where x_(t+1) stands", NOTATION),
    "R87": ("003:781", "a product over t, not i, and one condition y for all steps", NOTATION),
    "R89": ("003:821-826", "autoregressive flows are flows; measure their cost", OPINION),
    "R95": ("003:1053-1055", "layer norm conditions rather than regularises", OPINION),
    "R99": ("000:53-61", "noise is of the prior p(z), and G maps R^k to X", NOTATION),
    "R101": ("001:20", "W_hq, b_q where W_ha, b_a stand, and y_i where vi stands", NOTATION),
    "R102": ("000:330", "the distance between the laws is lowered, not the laws", WORDING),
    "R103": ("000:296", "the mean of a step is a function of x_(t-1)", NOTATION),
    "R104": ("002:98", "eta where n stands, and x of the misclassified row", NOTATION),
    "R106": ("004:259", "f-bar is the mean over data sets, y-bar that of y given x", NOTATION),
    "R107": ("002:147", "blur is no noise; a target turns by a turn of its own", WORDING),
    "R108": ("004:150", "L is a mean in one place and a sum in another", NOTATION),
    "R109": ("004:316", "FCN means fully connected here", WORDING),
    "R111": ("002:175", "of the 2^n networks of dropout few are ever trained", WORDING),
    "R112": ("003:543", "what is learned is the way back, not the noise", WORDING),
    "R113": ("003:381", "latent because z is not observed, not because it is compact", WORDING),
    "R115": ("003:954", "how a word is cut depends on the vocabulary", OPINION),
    "R116": ("003:892", "an output reads the input through the hidden state alone", WORDING),
    "R117": ("004:383-392", "names of weights, and the length of outputs", NOTATION),
    "R118": ("000:143-157", "figures that were lost", LOST),
}
"""By id: source, what is right, why it is prose."""
