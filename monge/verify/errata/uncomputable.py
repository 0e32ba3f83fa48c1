"""Common errors that no computation can show: the source, the statement, and why."""

from __future__ import annotations

NOTATION = "a matter of notation"
WORDING = "a matter of definition"
PRACTICE = "a claim or advice, not an equation"

VAE = "Kingma & Welling 2014, Auto-Encoding Variational Bayes"
GAN = "Goodfellow et al. 2014, Generative Adversarial Nets"
DDPM = "Ho, Jain & Abbeel 2020, Denoising Diffusion Probabilistic Models"
BOOK = "Goodfellow, Bengio & Courville 2016, Deep Learning"
BISHOP = "Bishop 2006, Pattern Recognition and Machine Learning"

PROSE = {
    "R29": (
        f"{VAE}, sec. 2.4",
        "Common error: (1/S) sum_s E grad f(g(eps_s)); correct: no E, the sum estimates it",
        NOTATION,
    ),
    "R69": (
        "Goodfellow 2016, NIPS 2016 Tutorial: Generative Adversarial Networks",
        "Common error: GANs are consistent; correct: given unlimited capacity and optimal D",
        PRACTICE,
    ),
    "R85": (
        f"{DDPM}, eq. 1",
        "Common error: the reverse mean is that of x_(t+1); correct: that of x_(t-1)",
        NOTATION,
    ),
    "R87": (
        "Dhariwal & Nichol 2021, Diffusion Models Beat GANs on Image Synthesis, sec. 4",
        "Common error: a condition y_t for each step; correct: one y for all steps",
        NOTATION,
    ),
    "R95": (
        "Santurkar et al. 2018, How Does Batch Normalization Help Optimization?; "
        "Ba, Kiros & Hinton 2016, Layer Normalization",
        "Common error: norms work as regularisers; correct: mainly by better conditioning",
        PRACTICE,
    ),
    "R99": (
        f"{GAN}, sec. 3",
        "Common error: the noise of a GAN follows p_g(z); correct: a fixed prior p(z)",
        NOTATION,
    ),
    "R102": (
        "Arjovsky, Chintala & Bottou 2017, Wasserstein GAN",
        "Common error: G minimises the two distributions; correct: their distance",
        WORDING,
    ),
    "R103": (
        f"{DDPM}, eq. 2",
        "Common error: the mean of x_t is a function of x_t; correct: of x_(t-1)",
        NOTATION,
    ),
    "R104": (
        f"{BISHOP}, sec. 4.1.7",
        "Common error: the perceptron moves by every row; correct: by misclassified rows",
        WORDING,
    ),
    "R106": (
        f"{BISHOP}, sec. 3.2",
        "Common error: bias is of one fitted f; correct: of its mean over datasets",
        WORDING,
    ),
    "R107": (
        f"{BOOK}, sec. 7.4 and 7.5",
        "Common error: blur is noise injection; correct: it is augmentation, without noise",
        WORDING,
    ),
    "R108": (
        f"{BOOK}, sec. 8.1.3",
        "Common error: L is now a sum, now a mean of rows; correct: one, as the lr scales",
        NOTATION,
    ),
    "R109": (
        "Long, Shelhamer & Darrell 2015, Fully Convolutional Networks for Semantic Segmentation",
        "Common error: FCN is a fully connected network; correct: fully convolutional",
        WORDING,
    ),
    "R111": (
        f"{BOOK}, sec. 7.12",
        "Common error: dropout trains all 2^n networks; correct: few, which share weights",
        WORDING,
    ),
    "R112": (
        f"{DDPM}, sec. 2",
        "Common error: diffusion learns how to add noise; correct: how to remove it",
        WORDING,
    ),
    "R113": (
        f"{VAE}, sec. 2",
        "Common error: z is latent because it is compact; correct: because it is unobserved",
        WORDING,
    ),
}
"""By id: source, statement, and why no control checks it. The ids R101, R117 and R118 are retired
and are not used again."""
