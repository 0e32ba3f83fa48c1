"""Faults injected on purpose, each with the check that must fail under it.

A mutant replaces a piece of one function of the library in memory: `where` names the function,
`old` is what its code says, `new` what the fault says instead. The code is compared after parsing,
so that neither comments nor line breaks matter, and no file is changed. `check` is the identity or
control that must fail, on a small model if it needs one. All mutants run in one child process,
which puts the code back after each; the residual is measured before the fault and after it, and
has to be the same number.
"""

from __future__ import annotations
import __future__ as future

import ast
import importlib
import inspect
import json
import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import CodeType, FunctionType
from typing import Any

from ..core.errors import RunError
from .framework import Identity, IdentityResult, hold, listed, load


@dataclass(frozen=True)
class Mutant:
    """One fault. `where` is the module below `monge` and the function in it, divided by a colon;
    `model` is the model that a check needs."""

    name: str
    statement: str
    where: str
    old: str
    new: str
    check: str
    model: str = ""


@dataclass(frozen=True)
class MutantResult:
    """What a check found without the fault and with it."""

    name: str
    statement: str
    where: str
    check: str
    id: str
    member: str
    tolerance: float | None
    without: float | None  # the residual
    with_fault: float | None  # none if it is not finite
    caught: bool
    reason: str = ""  # why the fault counts as not caught, or the error it caused

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class StaleMutantError(LookupError):
    """The code is no longer what a mutant says of it."""


def function_at(where: str) -> FunctionType:
    """The plain function that a place names, without what decorators put around it."""
    module, _, names = where.partition(":")
    found: Any = importlib.import_module(f"monge.{module}")
    for name in names.split("."):
        found = inspect.getattr_static(found, name)
    for wrapper in ("fget", "func", "__func__"):  # properties, cached properties, class methods
        found = getattr(found, wrapper, found) if not inspect.isfunction(found) else found
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{where} is not a function"
    return found


def altered(function: FunctionType, old: str, new: str) -> CodeType:
    """The code of a function with one piece of it replaced."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]  # kept by the function
    node.args.kw_defaults = [each and ast.Constant(None) for each in node.args.kw_defaults]
    text = ast.unparse(node)
    if text.count(old) != 1:
        raise StaleMutantError(
            f"expected {old!r} once in {function.__qualname__}, found it {text.count(old)} times; "
            "bring the mutant up to date with the code"
        )
    text = text.replace(old, new)
    names = function.__code__.co_freevars  # `super()` and enclosing functions
    outer = f"def outer({', '.join(names)}):\n" + textwrap.indent(text, "    ")
    flags = future.annotations.compiler_flag
    code = compile(outer, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    for name in ("outer", node.name):
        code = next(
            each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name
        )
    return code


@contextmanager
def injected(mutant: Mutant) -> Iterator[None]:
    """The library with this fault inside the block. Every reference to the function has it, since
    the function stays the same object and only its code is another."""
    function = function_at(mutant.where)
    right = function.__code__
    function.__code__ = altered(function, mutant.old, mutant.new)
    try:
        yield
    finally:
        function.__code__ = right


def check_of(mutant: Mutant) -> Identity:
    return load(next(each for each in listed() if each.name == mutant.check))


def examined(mutant: Mutant) -> IdentityResult:
    """The outcome of the mutant's check, on the first small model that it applies to, built
    anew."""
    from .subjects import fresh

    identity = check_of(mutant)
    members = fresh(mutant.model) if mutant.model else ()
    found = list(hold(identity, members, every=False))
    assert found, f"{mutant.check} applies to no small {mutant.model or 'model'}"
    return found[0]


def attempt(mutant: Mutant) -> MutantResult:
    """Hold a mutant against its check."""
    import torch

    torch.set_num_threads(1)
    before = examined(mutant)
    try:
        with injected(mutant):
            during = examined(mutant)
    except StaleMutantError as error:
        during = replace(before, passed=None, error=str(error))
    after = examined(mutant)
    infinite = during.residual is not None and math.isinf(during.residual)
    reason = during.error or ("the residual is infinite" if infinite else "")
    if not before.passed:
        reason = f"the check fails without the fault: {before.error or before.skipped or ''}"
    elif after.residual != before.residual:
        reason = "the check gives another residual after the fault than before it"
    caught = bool(before.passed) and during.passed is False and after.residual == before.residual
    return MutantResult(
        mutant.name,
        mutant.statement,
        mutant.where,
        mutant.check,
        before.id,
        before.member,
        before.tolerance,
        finite(before.residual),
        finite(during.residual),
        caught,
        reason,
    )


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def attempt_all(chosen: Sequence[Mutant]) -> Iterator[MutantResult]:
    """Hold mutants against their checks, in a child process that writes a line for each."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "monge.verify.mutants",
        *(mutant.name for mutant in chosen),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield MutantResult(**json.loads(line))
    if child.returncode:
        raise RunError(
            f"the process that injects faults ended with code {child.returncode}; its message is "
            "above"
        )


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "dropout unscaled",
        "Dropout in training does not divide by the share that it keeps.",
        "nn.layers.dropout:drop_elements",
        "MASK_LEVELS / (MASK_LEVELS - parts)",
        "1.0",
        "x27_dropout_keeps_the_mean",
    ),
    Mutant(
        "Monte-Carlo dropout unscaled",
        "A sampled mask is not divided by the share that it keeps.",
        "nn.layers.dropout:apply_mask",
        "/ (1 - rate)",
        "* 1.0",
        "x27_dropout_keeps_the_mean",
    ),
    Mutant(
        "attention weights unscaled",
        "Attention weights are softmax(q k') without 1 / sqrt(d).",
        "nn.attention.softmax:attention_weights",
        "q / math.sqrt(q.shape[-1])",
        "q",
        "x38_scores_have_unit_variance",
    ),
    Mutant(
        "attention unscaled",
        "Attention is softmax(q k') v without 1 / sqrt(d).",
        "nn.attention.softmax:attend",
        "is_causal=causal",
        "is_causal=causal, scale=1.0",
        "x33_identity_maps_give_the_non_local_layer",
    ),
    Mutant(
        "dot score unscaled",
        "The dot score of an encoder and decoder lacks 1 / sqrt(d).",
        "nn.attention.scores:DotScore.forward",
        "/ math.sqrt(q.shape[-1])",
        "* 1.0",
        "x110_scores_are_their_formulas",
    ),
    Mutant(
        "cached attention unscaled",
        "Step by step, queries are not divided by sqrt(d).",
        "nn.attention.softmax:KeyValueCache.__init__",
        "size ** (-0.5)",
        "1.0",
        "x32_cached_steps_equal_the_masked_pass",
    ),
    Mutant(
        "additive score multiplied",
        "The additive score multiplies the maps of query and key.",
        "nn.attention.scores:AdditiveScore.forward",
        "+ self.key(k)",
        "* self.key(k)",
        "x110_scores_are_their_formulas",
    ),
    Mutant(
        "reset gate scaled",
        "A GRU that resets before the product halves the reset vector.",
        "nn.recurrent:reset_before",
        "r * h, u[2 * width:]",
        "0.5 * r * h, u[2 * width:]",
        "x39_reset_before_is_its_formula",
    ),
    Mutant(
        "reset matrix transposed",
        "A GRU that resets before the product uses U' for U.",
        "nn.recurrent:reset_before",
        "r * h, u[2 * width:]",
        "r * h, u[2 * width:].T",
        "x39_reset_before_is_its_formula",
    ),
    Mutant(
        "state-space growth",
        "The states of a diagonal state space grow: A has the other sign.",
        "nn.state_space:DiagonalStateSpace.discretise",
        "-self.log_rate.exp()",
        "self.log_rate.exp()",
        "x126_zero_order_hold_solves_the_equation",
    ),
    Mutant(
        "state carried a step too short",
        "Between chunks a state decays by one step less than a chunk has.",
        "nn.state_space:DiagonalStateSpace.forward",
        "[powers[..., -1:]]",
        "[powers[..., -2:-1]]",
        "x126_a_state_space_is_a_convolution",
    ),
    Mutant(
        "decay of another chunk",
        "A carried state decays as in the chunk after.",
        "nn.state_space:carry",
        "zip(decay[:-1]",
        "zip(decay[1:]",
        "x126_the_selective_scan_is_its_recurrence",
    ),
    Mutant(
        "stale convolution",
        "Step by step, the sums of the short convolution are not shifted.",
        "nn.state_space:MambaBlock.stepper",
        "sums[:, 1:]",
        "sums[:, :-1]",
        "x126_steps_equal_the_pass",
    ),
    Mutant(
        "sinusoids of another base",
        "Wavelengths of positions grow to 1000, not to 10000.",
        "nn.attention.position:frequencies",
        "WAVELENGTH_BASE **",
        "1000.0 **",
        "x37_sinusoids_turn",
    ),
    Mutant(
        "symmetric relative bias",
        "A table of relative biases ignores the sign of the distance.",
        "nn.attention.position:ClippedBias.of",
        "distance.clamp(",
        "distance.abs().clamp(",
        "x36_biases_distinguish_past_and_future",
    ),
    Mutant(
        "layer norm of each channel",
        "Layer norm of maps averages each channel alone.",
        "nn.layers.norm:norm",
        "nn.GroupNorm(1, channels)",
        "nn.GroupNorm(channels, channels)",
        "x26_norms_are_their_formulas",
    ),
    Mutant(
        "non-local block doubled",
        "A non-local block adds twice its sum.",
        "nn.layers.conv:NonLocal.forward",
        "x + self.out",
        "x + 2 * self.out",
        "x33_non_local_blocks_are_their_formulas",
    ),
    Mutant(
        "activations exchanged",
        "gelu and silu are exchanged.",
        "nn.layers.activation:activation",
        "'gelu': nn.GELU(), 'silu': nn.SiLU(inplace)",
        "'gelu': nn.SiLU(), 'silu': nn.GELU()",
        "x4_activations_are_their_formulas",
    ),
    Mutant(
        "kernel flipped",
        "A causal convolution reads its taps in the opposite order.",
        "nn.causal_conv:CausalConv.over",
        "torch.cat([x[:, start:start + steps] for start in starts], 2)",
        "torch.cat([x[:, start:start + steps] for start in starts[::-1]], 2)",
        "x21_convolution_is_correlation_with_the_kernel_turned",
    ),
    Mutant(
        "padding off by one",
        "A convolution is padded by one position too many.",
        "nn.layers.specs:ConvSpec.build",
        "self.margin",
        "self.margin + 1",
        "x19_convolution_is_a_toeplitz_matrix",
    ),
    Mutant(
        "gain of another function",
        "He's initialisation takes the gain of relu for every function.",
        "nn.layers.init:initialise",
        "GAIN_SQUARED[activation]",
        "GAIN_SQUARED['relu']",
        "x30_linear_layers_keep_the_variance",
    ),
    Mutant(
        "first weights kept",
        "Early stopping keeps the weights of its first evaluation.",
        "train.trainer:Trainer.update_best",
        "self.weights())",
        "self.best_weights or self.weights())",
        "x44_best_weights_are_those_of_the_best_step",
    ),
    Mutant(
        "players move at once",
        "The second player of a step answers the first one's old place.",
        "train.trainer:Trainer.train_step",
        "in enumerate(self.updates):",
        "in reversed(list(enumerate(self.updates))):",
        "x89_players_that_move_in_turn_stay",
    ),
    Mutant(
        "bootstrap without its last row",
        "A bootstrap never draws the last row.",
        "core.ensemble:bootstrap",
        "n * keyed_uniform",
        "(n - 1) * keyed_uniform",
        "x47_bagging_leaves_the_correlated_variance",
    ),
    Mutant(
        "sample of a posterior detached",
        "The sample of a factorised posterior carries no gradient.",
        "models.latent._posterior:FactorisedPosterior.reparameterise",
        "pathwise(mean, log_scale.exp(), noise)",
        "pathwise(mean, log_scale.exp(), noise).detach()",
        "x8_pathwise_and_score_gradients_are_the_gradient",
    ),
    Mutant(
        "sample of a full posterior detached",
        "The sample of a posterior with full covariance carries no gradient.",
        "models.latent._posterior:FullCovariancePosterior.reparameterise",
        "pathwise(mean, log_scale.exp(), noise) + correlated",
        "(pathwise(mean, log_scale.exp(), noise) + correlated).detach()",
        "x8_samples_of_every_posterior_carry_a_gradient",
    ),
    Mutant(
        "code of the loss detached",
        "The loss of a VAE decodes a code without gradient.",
        "models.latent.vae:VAE.loss",
        "self.log_given_code(batch, code.z, context)",
        "self.log_given_code(batch, code.z.detach(), context)",
        "x119_updates_follow_the_slope_of_their_loss",
        model="latent.vae",
    ),
    Mutant(
        "decoder of the top level",
        "An MHVAE decodes from its top level.",
        "models.latent.mhvae:MHVAE.decoder_levels",
        "[0]",
        "[len(self.widths) - 1]",
        "x61_codes_form_a_chain",
        model="latent.mhvae",
    ),
    Mutant(
        "every level reads the data",
        "Every level of an MHVAE's posterior reads x.",
        "models.latent.mhvae:MHVAE.posterior_reads_data",
        "level == 0",
        "True",
        "x61_codes_form_a_chain",
        model="latent.mhvae",
    ),
    Mutant(
        "KL of levels reversed",
        "The divergence of a level is KL(p || q).",
        "models.latent._hierarchy:LevelGaussian.kl",
        "narrower = self.log_scale - other.log_scale",
        "narrower = other.log_scale - self.log_scale",
        "x62_divergences_of_levels_are_those_of_normals",
    ),
    Mutant(
        "importance weights without the prior",
        "A bound of several samples forgets the prior.",
        "models.latent.vae:VAE.sample_posterior",
        "- log_p",
        "- 0 * log_p",
        "x58_a_bound_is_tight_at_the_posterior",
    ),
    Mutant(
        "tree of other parents",
        "A Chow-Liu tree scores each entry given the parent of the entry before it.",
        "models.baseline._base:TreeOfCodes.known",
        "code[:, self.parent.clamp_min(0)]",
        "code[:, self.parent.clamp_min(0)].roll(1, 1)",
        "x64_a_directed_graph_is_a_product",
        model="baseline.chow_liu",
    ),
    Mutant(
        "biased subsets",
        "Deep NADE shows each entry with probability one half.",
        "models.autoregressive.deep_nade:DeepNADE.random_subsets",
        "< u[:, None]",
        "< 0.5",
        "x54_subsets_are_drawn_evenly",
        model="autoregressive.deep_nade",
    ),
    Mutant(
        "horizontal stack leaks",
        "The vertical stack of a gated PixelCNN reads the horizontal one.",
        "nn.autoregressive.pixelcnn:GatedPixelLayer.forward",
        "return (v, h, y)",
        "return (v + y, h, y)",
        "r61_the_stacks_of_an_image_meet_one_way",
    ),
    Mutant(
        "mask of the second layer strict",
        "Later masked convolutions do not read their own pixel's features.",
        "nn.autoregressive.pixel:masked_conv",
        "- int(strict) >=",
        "- 1 >=",
        "r61_the_stacks_of_an_image_meet_one_way",
    ),
    Mutant(
        "variance shared by one map too many",
        "Residual sums count the last map among those that share the variance.",
        "nn.layers.init:initialise_chain",
        "between = len(layers) - 2",
        "between = len(layers) - 1",
        "x30_built_weights_have_their_variance",
    ),
    Mutant(
        "median of an ensemble",
        "An ensemble predicts the median of its members.",
        "core.ensemble:EnsembleMean.mean",
        "for member in self.each]).mean(0)",
        "for member in self.each]).median(0).values",
        "x46_error_is_bias_variance_and_noise",
    ),
    Mutant(
        "likelihood lowered",
        "Predictors are trained to lower the log-likelihood.",
        "models.predict._base:Predictor.weighted_nll",
        "each = -torch.where(",
        "each = torch.where(",
        "r30_a_convex_function_lies_above_its_tangents",
    ),
    Mutant(
        "squared error in pix2pix",
        "The distance of pix2pix to its target is squared.",
        "models.adversarial.pix2pix:Pix2Pix.generator_loss",
        "(y - fake).abs()",
        "(y - fake).square()",
        "x90_absolute_error_is_least_at_the_median",
    ),
    Mutant(
        "discriminator blind to the source",
        "The discriminator of pix2pix sees the target alone.",
        "models.adversarial.pix2pix:Pix2Pix.discriminate",
        "torch.cat([x, y], 1)",
        "torch.cat([0 * x, y], 1)",
        "x82_a_discriminator_of_pairs_reads_the_source",
        model="adversarial.pix2pix",
    ),
    Mutant(
        "clipped from below only",
        "Weight clipping leaves large positive weights.",
        "models.adversarial._lipschitz:Clipping.project",
        "torch._foreach_clamp_max_(tensors, bound)",
        "None",
        "x72_a_trained_clipped_critic_stays_below",
    ),
    Mutant(
        "discriminator loss doubled",
        "The loss of fake rows is counted twice.",
        "models.adversarial._losses:discriminator_terms",
        "'fake': F.softplus(fake) / 2",
        "'fake': F.softplus(fake)",
        "x83_least_value_is_minus_log_four",
    ),
    Mutant(
        "projection without its condition",
        "The product of a projection discriminator adds up all classes.",
        "models.adversarial._conditioning:ProjectionConditioning.logit",
        "(out[:, 1:] * context).sum(1)",
        "out[:, 1:].sum(1)",
        "x136_a_projection_reads_the_ratio_of_class_conditionals",
    ),
    Mutant(
        "class head without its normaliser",
        "The class loss is the logit of the label instead of its log-probability.",
        "models.adversarial._conditioning:AuxiliaryConditioning.class_loss",
        "logits.log_softmax(1)",
        "logits.tanh()",
        "x137_the_best_class_head_mixes_data_and_model",
    ),
    Mutant(
        "generator free of the class loss",
        "The generator of an auxiliary classifier GAN is not charged for labels.",
        "models.adversarial.dcgan:DCGAN.generator_loss",
        "loss is None",
        "True",
        "x137_both_players_are_charged_for_labels",
    ),
    Mutant(
        "noise truncated by another scale",
        "Truncation takes the variance of noise for a half.",
        "models._generator:truncate",
        "torch.erf(z / math.sqrt(2))",
        "torch.erf(z)",
        "x138_truncated_noise_is_normal_between_its_ends",
    ),
    Mutant(
        "demodulation by scales that are not squared",
        "The norm of modulated weights adds up scales instead of their squares.",
        "models.adversarial._image_generators:ModulatedConv.norms",
        "scales.square() @ squares.T",
        "scales.abs() @ squares.T",
        "x139_demodulated_weights_have_unit_norm",
    ),
    Mutant(
        "style truncated towards nothing",
        "A truncated style is drawn towards 0 instead of its mean.",
        "models.adversarial._image_generators:StyleGenerator.forward",
        "torch.lerp(self.mean_style(context), style, truncation)",
        "truncation * style",
        "x139_a_truncated_style_keeps_its_mean",
    ),
    Mutant(
        "generated pictures as they are",
        "The discriminator learns from augmented real and plain generated pictures.",
        "models.adversarial.dcgan:DCGAN.discriminator_loss",
        "[self.discriminator_outputs(y, context) for y in (self.real(batch), fake)]",
        "[self.discriminator_outputs(self.real(batch), context), "
        "self.discriminator_outputs(fake, context, True)]",
        "x140_equal_distributions_stay_equal_under_augmentation",
    ),
    Mutant(
        "augmentation without a gradient",
        "Changed pictures pass no gradient to the generator.",
        "models.adversarial._augmentation:augment",
        "torch.where(chosen, CHANGES[name](x), x)",
        "torch.where(chosen, CHANGES[name](x.detach()), x)",
        "x140_augmentation_passes_gradients_on",
    ),
    Mutant(
        "cycle loss nil",
        "The cycle loss of a C-Flow is left out.",
        "models.flow.cflow:CFlow.loss",
        "if self.config.cycle:",
        "if False:",
        "x118_a_cycle_decodes_the_middle_code",
        model="flow.cflow",
    ),
    Mutant(
        "consistency without its boundary",
        "A consistency function is the estimate of x, also at the data.",
        "models.diffusion.consistency:Consistency.end",
        "self.schedule.sigma(start) * prediction.noise",
        "0 * prediction.noise",
        "x128_f_at_the_data_is_the_identity",
        model="diffusion.consistency",
    ),
    Mutant(
        "teacher's step of order one",
        "A step along the flow of a teacher ignores the estimate at its end.",
        "models.diffusion.consistency:flow_step",
        "(here.x0 + ahead.x0) / 2",
        "here.x0",
        "x128_a_step_of_the_teacher_is_of_order_two",
    ),
    Mutant(
        "reflow of other pairs",
        "Reflow pairs each sample with the noise of another.",
        "models.flow.cnf:CNF.reflow_pairs",
        "z[again]",
        "z[again.flip(0)]",
        "x129_the_loss_of_reflow_is_zero_at_straight_paths",
    ),
    Mutant(
        "distilled from one step",
        "The target of a student is where the first of both steps ends.",
        "models.diffusion.distilled:two_step_target",
        "(end - kept * z)",
        "(half - kept * z)",
        "x130_a_distilled_step_is_two_of_the_teacher",
    ),
    Mutant(
        "conditions never dropped",
        "No condition is dropped in training.",
        "models.diffusion._base:Diffusion.drop_conditions",
        ">= self.config.drop",
        ">= 0.0",
        "x102_conditions_are_dropped_at_their_rate",
        model="diffusion.ddpm",
    ),
    Mutant(
        "continuous bound doubled",
        "The diffusion term in continuous time is doubled.",
        "models.diffusion._likelihood:log_snr_and_weight",
        "0.5 * (high - low)",
        "1.0 * (high - low)",
        "x105_finer_steps_lower_the_loss_to_its_integral",
    ),
    Mutant(
        "trained bound doubled",
        "The diffusion term that a VDM is trained by is doubled.",
        "models.diffusion.vdm:VDM.diffusion_loss",
        "return -0.5 * derivative * error",
        "return -1.0 * derivative * error",
        "x105_own_loss_is_the_bound",
        model="diffusion.vdm",
    ),
    Mutant(
        "weights of steps halved",
        "The weights of a bound of T steps are halved.",
        "models.diffusion._likelihood:log_snr_and_weight",
        "0.5 * inputs.steps",
        "0.25 * inputs.steps",
        "x93_denoising_bound_is_the_bound",
    ),
    Mutant(
        "implicit score matching without its half",
        "Implicit score matching adds |s|^2, not half of it.",
        "models.diffusion.score_sde:ScoreSDE.trace_loss",
        "0.5 * s.square()",
        "s.square()",
        "x99_implicit_is_explicit_score_matching",
    ),
    Mutant(
        "classifier guidance reversed",
        "Guidance by a classifier moves away from the label.",
        "models.diffusion._guidance:classifier_guidance",
        "lambda x: x + shift",
        "lambda x: x - shift",
        "x101_conditional_score_is_bayes_rule",
    ),
    Mutant(
        "guidance without the difference",
        "Classifier-free guidance adds the conditional prediction itself.",
        "models.diffusion._guidance:classifier_free_guidance",
        "torch.lerp(without_y, with_y, weight)",
        "without_y + weight * with_y",
        "x102_guidance_is_one_combination",
    ),
    Mutant(
        "score of the noise that is missing",
        "A score is converted into noise without its sign.",
        "models.diffusion._parameterisation:DenoiserPrediction.noise",
        "return -sigma * self.value",
        "return sigma * self.value",
        "x97_tweedie",
    ),
    Mutant(
        "scheduled sampling nil",
        "The decoder is trained on the true symbols alone.",
        "models.sequence._encoder_decoder:EncoderDecoderModel.mix_own_samples",
        "< share",
        "< 0.0",
        "x117_decoders_read_their_own_samples",
    ),
    Mutant(
        "scheduled sampling not called",
        "The loss of seq2seq never mixes in samples.",
        "models.sequence.seq2seq:Seq2Seq.loss",
        "if self.config.scheduled_sampling:",
        "if False:",
        "x117_decoders_read_their_own_samples",
    ),
    Mutant(
        "columns never scaled",
        "Each pass of Sinkhorn's algorithm scales rows alone.",
        "solve.transport.sinkhorn:unrolled",
        "g = -epsilon * torch.logsumexp((f[..., None]",
        "g = -0.0 * torch.logsumexp((f[..., None]",
        "x66_scalings_are_projections",
    ),
    Mutant(
        "value without its entropy",
        "The sharp value of a plan subtracts no entropy.",
        "solve.transport.sinkhorn:Plan.sharp",
        "self.value - self.epsilon * entropy",
        "self.value - 0 * entropy",
        "x65_the_objective_is_a_divergence",
    ),
    Mutant(
        "plan of half the weights",
        "The blocks of a plan are weighed by a alone.",
        "solve.transport.sinkhorn:Plan.block",
        "self.b[..., None, :]",
        "self.b[..., None, :].square()",
        "x67_the_plan_is_the_projection",
    ),
    Mutant(
        "negative phase added",
        "Contrastive divergence adds the energy of chains to that of data.",
        "models.energy.ebm:EBM.loss",
        "data - chains.mean()",
        "data + chains.mean()",
        "x125_contrastive_divergence_follows_the_likelihood",
    ),
    Mutant(
        "noise counted once",
        "Noise-contrastive estimation forgets how many samples of the base a row has.",
        "models.energy.ebm:EBM.regression",
        "math.log(len(noise) / len(w))",
        "0.0",
        "x125_noise_contrast_is_least_at_the_log_ratio",
    ),
    Mutant(
        "momentum left out",
        "A Hamiltonian move is accepted without the momentum at its end.",
        "models._annealing:leap",
        "(end.w.square() + momentum.square())",
        "(end.w.square() + before.square())",
        "x125_a_hamiltonian_move_keeps_the_distribution",
    ),
    Mutant(
        "weights after the move",
        "Annealed weights are those of states that have moved already.",
        "models._annealing:NormalPath.run",
        "(low - high) * chains.energy",
        "(low - high) * moved.energy",
        "x125_annealed_weights_have_the_mean_z",
    ),
    Mutant(
        "ties count as lower",
        "The rank of a value counts all samples that equal it.",
        "evaluate.ranks:ranks_of",
        "(share * (equal + 1)).long()",
        "equal",
        "x141_ranks_among_posterior_samples_are_uniform",
    ),
    Mutant(
        "ladder without precisions",
        "A ladder averages the means of prior and data evenly.",
        "models.latent._hierarchy:LevelGaussian.times",
        "torch.lerp(other.mean, self.mean, share)",
        "torch.lerp(other.mean, self.mean, 0.5)",
        "x149_ladder_posterior_is_the_prior_times_a_gaussian_of_data",
    ),
    Mutant(
        "momentum halved",
        "Annealed codes move with half the momentum.",
        "models._annealing:RowNoise.moves",
        "momentum = self.normals(blocks, key, 'momentum', number)",
        "momentum = self.normals(blocks, key, 'momentum', number) / 2",
        "x142_annealed_weights_have_the_mean_p_of_x",
        model="latent.vae",
    ),
    Mutant(
        "annealed from other codes",
        "Annealed codes start from other noise than importance samples.",
        "models._annealing:annealed_bound",
        "'codes'",
        "'other codes'",
        "x143_one_temperature_is_importance_sampling",
        model="latent.vae",
    ),
    Mutant(
        "evidence without the determinant",
        "The evidence counts the determinant of the precision once, not its root.",
        "prob.laplace:LaplacePosterior.log_evidence",
        "(self.values + self.precision).log().sum() / 2",
        "(self.values + self.precision).log().sum()",
        "x144_laplace_is_exact_for_linear_gaussian_models",
    ),
    Mutant(
        "all weights determined",
        "The precision is chosen as if data determined every weight.",
        "prob.laplace:LaplacePosterior.fit",
        "(values / (values + precision)).sum()",
        "(values / values).sum()",
        "x145_the_precision_has_the_highest_evidence",
    ),
    Mutant(
        "energy of the start",
        "A move is accepted by the energy of the state that it left.",
        "models._annealing:leap",
        "beta * end.energy",
        "beta * chains.energy",
        "x146_the_error_of_a_move_is_of_second_order",
    ),
    Mutant(
        "particles attract",
        "Particles are drawn to one another.",
        "solve.mcmc:stein_direction",
        "kernel @ score + apart",
        "kernel @ score - apart",
        "x147_steins_direction_vanishes_at_the_distribution",
    ),
    Mutant(
        "whole chains",
        "R-hat compares chains without cutting them.",
        "solve.mcmc:split_rhat",
        "parts.mean(0).var(0)",
        "parts.mean(0).var(0) / half",
        "x148_chains_that_agree_have_rhat_one",
    ),
    Mutant(
        "masks weighed by their number alone",
        "Masked entries have the weight of their set, not of one of them.",
        "models.diffusion.d3pm:mask_weights",
        "1 / (m * math.comb(dims, m))",
        "1 / math.comb(dims, m)",
        "x127_continuous_time_is_the_mean_over_orders",
        model="diffusion.d3pm",
    ),
    Mutant(
        "masked entries shown",
        "The network reads the entries that it predicts.",
        "models.diffusion.d3pm:D3PM.masked_log_prob",
        "torch.where(masked | ~rows.exist, self.values, rows.codes)",
        "rows.codes",
        "x127_the_bound_is_the_sum_of_its_divergences",
        model="diffusion.d3pm",
    ),
    Mutant(
        "step back from the start of time",
        "A step back takes the noise since time 0 for that of the step.",
        "models.diffusion.d3pm:Corruption.posterior",
        "here / there",
        "here",
        "x127_a_step_back_follows_from_bayes_rule",
    ),
    Mutant(
        "new values added twice",
        "Noise keeps values besides adding all of the new ones.",
        "models.diffusion.d3pm:Corruption.marginal",
        "(1 - share) * self.rest",
        "self.rest",
        "x127_noise_is_the_product_of_its_steps",
    ),
    Mutant(
        "own row weighed by the batch",
        "The density of a code takes its own row for one of the batch alone.",
        "models.latent._total_correlation:log_row_weights",
        "fill_diagonal_(-math.log(rows))",
        "fill_diagonal_(-math.log(batch))",
        "x131_random_batches_estimate_the_density_of_codes",
    ),
    Mutant(
        "product without weights",
        "Densities of single units are sums over the batch instead of means.",
        "models.latent._total_correlation:log_ratios_in_batch",
        "(each + weights[..., None]).logsumexp(-2)",
        "each.logsumexp(-2)",
        "x131_total_correlation_of_a_whole_batch",
    ),
    Mutant(
        "permuted codes called codes",
        "The discriminator is trained to say the same of permuted codes.",
        "models.latent._total_correlation:discriminator_loss",
        "F.softplus(product)",
        "F.softplus(-product)",
        "x131_the_best_discriminator_is_the_log_ratio",
    ),
    Mutant(
        "sum of posteriors",
        "The prior of pseudo-inputs is the sum of their posteriors.",
        "models.latent.vae:VampPrior.log_prob",
        "each.logsumexp(-1, keepdim=True) - math.log(each.shape[-1])",
        "each.logsumexp(-1, keepdim=True)",
        "x132_vamp_prior_is_the_mean_of_posteriors",
    ),
    Mutant(
        "least probable class",
        "The class that is taken for a label is the least probable one.",
        "models.predict.semi:SemiSupervised.targets",
        "each.argmax(-1)",
        "each.argmin(-1)",
        "x133_pseudo_labels_cost_at_most_the_entropy",
    ),
    Mutant(
        "teacher runs ahead",
        "The average forgets by the share that it should keep.",
        "models._moving_average:follow",
        "weight.lerp_(wanted, 1 - decay)",
        "weight.lerp_(wanted, decay)",
        "x133_the_teacher_is_an_average_of_students",
    ),
    Mutant(
        "half the angle",
        "The loss of two views is one less their cosine.",
        "models.represent.byol:angle_loss",
        "2 - 2 * F",
        "1 - F",
        "x134_the_angle_is_the_distance_of_directions",
    ),
    Mutant(
        "entropy of the class left out",
        "The bound of a row without a label forgets the entropy of its class.",
        "models.predict.m2:marginal_bound",
        "bounds + log_prior - log_q",
        "bounds + log_prior",
        "x135_the_bound_without_a_label_is_missed_by_a_divergence",
    ),
    Mutant(
        "bits sampled too surely",
        "Samples of a bit take its more probable value more often than it is probable.",
        "prob.distributions:BernoulliDistribution.sample",
        "params.select(-1, 0).sigmoid()",
        "params.select(-1, 0).mul(2.0).sigmoid()",
        "x150_log_p_has_no_slope_on_its_own_samples",
        "autoregressive.made",
    ),
)
"""Every fault that a check is known to catch."""


if __name__ == "__main__":
    for each in MUTANTS:
        if each.name in sys.argv[1:]:
            sys.stdout.write(json.dumps(attempt(each).to_dict()) + "\n")
            sys.stdout.flush()
