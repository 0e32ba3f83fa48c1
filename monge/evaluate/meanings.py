"""What each metric means, in one line, for reports; docs/metrics.md holds the same lines."""

from __future__ import annotations

from fnmatch import fnmatchcase

MEANINGS: dict[str, dict[str, str]] = {
    "likelihood": {
        "log_likelihood": "mean log-likelihood of the rows evaluated; higher is better",
        "bits_per_dim": "minus the log-likelihood in bits per entry of a row; lower is better",
        "likelihood_gap": "log-likelihood of training rows minus that of the rows evaluated; far "
        "above 0 means over-fitting",
        "kl": "divergence from the known density of the data, or the KL term of a bound; lower is "
        "better",
        "fisher_divergence": "half the mean squared error of the gradient of the log-density, "
        "where that is known; 0 if equal",
        "held_out_loss": "the training loss on the rows evaluated; it compares settings of one "
        "model only",
    },
    "samples": {
        "energy_distance": "distance between samples and real rows in standardised features; 0 "
        "for equal distributions",
        "mmd": "maximum mean discrepancy, a kernel distance; 0 for equal distributions",
        "sliced_wasserstein_2": "transport distance along random directions; lower is better",
        "sinkhorn_divergence": "entropic transport distance; lower is better",
        "c2st": "accuracy of a network that distinguishes samples from real rows; 0.5 for equal "
        "distributions",
        "precision": "share of samples close to real rows",
        "recall": "share of real rows close to samples",
        "density": "how densely samples lie around real rows; 1 for equal distributions",
        "coverage": "share of real rows with a sample nearby",
        "memorised": "share of samples nearer to a training row than 99 % of held-out rows are; "
        "above 0.01 means copying",
        "duplicates": "share of samples nearer to another sample than 99 % of real rows are to "
        "one another",
        "frechet_distance": "distance of the means and covariances of network features",
        "kernel_distance": "kernel distance of network features, unbiased for few rows",
        "l1": "mean absolute error per pixel of translated images; lower is better, and compare "
        "those of the source and of the mean image",
        "ssim": "structural similarity of images, 1 if equal",
        "patch_c2st": "accuracy of a network that distinguishes patches of translations from "
        "those of targets, each beside its source; 0.5 if it cannot",
        "sharpness": "variance of the Laplacian of sampled images over that of real ones; below 1 "
        "means blur, above 1 noise",
    },
    "codes": {
        "probe_accuracy": "accuracy of a linear classifier of the label on codes",
        "mig": "mutual information gap, the mean over factors; 1 if one coordinate has all "
        "information about a factor and no other any",
        "mig.*": "mutual information gap of one factor",
        "dci_disentanglement": "1 if every coordinate of the code predicts one factor only",
        "dci_completeness": "1 if every factor is predicted from one coordinate only",
        "dci_informativeness": "accuracy of random forests that predict the factors from the code",
        "beta_vae_score": "accuracy of telling which factor pairs of rows share from the "
        "differences of their codes",
    },
    "table": {
        "marginals": "mean total variation of single columns, numbers in 10 bins of training "
        "quantiles, empty cells a category of their own; 0 for equal distributions",
        "worst_marginal": "total variation of the column that differs most",
        "pairs": "mean total variation of pairs of columns; few rows raise it, so compare it with "
        "that of real rows",
        "pair_correlations": "mean difference of the correlations of different columns",
        "empty_cells": "largest difference of the rate of empty cells of a column, in percentage "
        "points",
        "empty_pairs": "largest difference of the rate at which two columns are empty in the same "
        "row, in percentage points",
        "detection_auc": "area under the ROC curve of boosted trees that distinguish samples from "
        "real rows; 0.5 for equal distributions, 1 if they always can",
        "tstr_*": "how well boosted trees fitted to samples predict this column of real rows: "
        "accuracy of names, R² of numbers",
    },
    "privacy": {
        "closest_record_distance": "median distance of samples to the closest training row; the "
        "reference is that of held-out rows",
        "closest_record_ratio": "that median over the median of held-out rows; below 1 samples "
        "are closer to training rows than new rows are",
        "closer_than_held_out": "share of samples closer to a training row than 95 % of held-out "
        "rows are; about 0.05 if samples are like new rows",
        "nearest_neighbour_ratio": "median ratio of the distances to the nearest and to the "
        "second nearest training row; lower than that of held-out rows if single rows are "
        "reproduced",
        "exact_copies": "share of samples equal to a training row in every cell; held-out rows "
        "repeat training rows too if values are few",
        "membership_auc": "how well the distance to the closest sample separates training rows "
        "from held-out rows; 0.5 if it does not",
        "attribute_disclosure": "how often the closest sample on the other columns has the name "
        "in a training row; the reference is the same for held-out rows, and the excess over it "
        "is what training rows lose",
        "training_rows_searched": "training rows that samples were compared with",
    },
    "completion": {
        "hidden_*_mae": "mean absolute error of the conditional median of hidden numbers, in "
        "standard deviations of the training rows, with this percentage of the cells hidden",
        "hidden_*_coverage_80": "share of hidden numbers inside the central 80 % interval of the "
        "completions",
        "hidden_*_accuracy": "share of hidden names that are the most frequent among the "
        "completions",
        "hidden_*_energy_distance": "energy distance of completed rows from the true rows; 0 if "
        "they have one distribution",
        "rows_completed": "held-out rows with hidden cells, at most 200, fewer for slow models",
    },
    "calibration": {
        "rank_p": "p-value that the ranks of held-out rows among samples given the same "
        "conditions are uniform, over all entries and the density (Bonferroni); below 0.01 the "
        "model is too narrow, too wide or biased",
        "*.rank_p": "the same of one entry, or of the log-density of whole rows",
        "*.coverage_0.5": "share of values inside the central 50 % interval; of the density, of "
        "rows inside the 50 % region of highest density",
        "*.coverage_0.9": "the same of 90 %; less means too narrow, more too wide",
        "rows_ranked": "held-out rows with 99 samples each, at most 1000, fewer for slow models",
    },
    "predictions": {
        "accuracy": "share of rows whose class is predicted",
        "nll": "mean minus log-probability of the true class; lower is better",
        "calibration_error": "mean gap between confidence and accuracy; 0 if calibrated",
        "rmse": "root mean square error of the predicted mean",
        "mae": "mean absolute error of the predicted mean",
        "coverage_0.9": "share of targets inside the central 90 % interval",
        "interval_width": "mean width of that interval",
    },
    "text": {
        "perplexity": "exponential of minus the mean log-likelihood of a token; lower is better",
        "nats_per_token": "minus the mean log-likelihood of a token",
        "bits_per_character": "minus the log-likelihood in bits per character, comparable between "
        "tokens; lower is better",
        "bleu": "shared runs of up to four words with the reference, in per cent (sacrebleu); "
        "higher is better",
        "chrf": "F-score of shared runs of up to six characters with the reference, in per cent; "
        "higher is better",
        "rouge_1": "F-score of the words shared with the reference, in per cent; higher is better",
        "rouge_2": "F-score of the pairs of neighbouring words shared with the reference, in per "
        "cent",
        "rouge_l": "F-score of the longest common subsequence of words with the reference, in per "
        "cent",
        "word_error_rate": "words to change, add or remove per word of the reference, in per "
        "cent; lower is better",
    },
    "cost": {
        "parameters": "numbers that training can change",
        "train_seconds": "seconds of training",
        "samples_per_second": "samples per second on this machine",
        "rows_scored_per_second": "log-likelihoods per second on this machine",
        "peak_memory": "largest memory of this process",
    },
}
"""The meaning of each metric by group; * stands for a column or a percentage."""


def meaning(name: str) -> tuple[str, str]:
    """The name or pattern that a metric is described under, and its meaning; empty if unknown."""
    known = {key: text for group in MEANINGS.values() for key, text in group.items()}
    pattern = next((key for key in known if fnmatchcase(name, key)), name)
    return pattern, known.get(pattern, "")
