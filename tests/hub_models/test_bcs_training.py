"""Training a BCS head: members together equal members alone, the published settings, resume, clipping, thresholds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decodehub.hub_models.bcs import BCSConfig, BCSHead
from decodehub.hub_models.bcs.training import EnsembleTrainer, PairData, TrainingSettings, clip_by_member, fit_thresholds

DIM = 6
SEEDS = [7, 13, 21]
QUICK = TrainingSettings(batch_size=32, epochs=6, lr=2e-3)


def head(seeds: list[int] | None = None, architecture: str = "mlp") -> BCSHead:
    encoders = [{"id": "lite0", "dim": DIM, "fingerprint": None}]
    return BCSHead(BCSConfig(encoders=encoders, seeds=seeds or SEEDS, hidden_size=16, ffn_size=24, architecture=architecture))


def data(n: int = 110, noise: float = 0.0) -> PairData:
    """Targets in quarters that depend on the features; a target is unknown here and there."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 4 * DIM + 1)).astype(np.float32)
    y = 1 / (1 + np.exp(-2 * (x @ rng.standard_normal((x.shape[1], 12)) / 5 + noise * rng.standard_normal((n, 12)))))
    targets = np.round(4 * y) / 4
    targets[3, 4], targets[n - 2, 0] = np.nan, np.nan
    weights = rng.choice([1.0, 0.75], (n, 12))
    return PairData(x, targets, weights, np.arange(70), np.arange(70, n))


def run(model: BCSHead, settings: TrainingSettings = QUICK, pairs: PairData | None = None, together: bool | None = None) -> EnsembleTrainer:
    trainer = EnsembleTrainer(model, pairs or data(), settings, together=together)
    while not trainer.finished:
        trainer.run_epoch()
    trainer.select()
    return trainer


@pytest.mark.parametrize("together", [True, False], ids=["one batched step", "steps in turn"])
@pytest.mark.parametrize("architecture", ["mlp", "ordinal_prototype", "siglip_baseline"])
def test_members_together_are_members_alone(architecture: str, together: bool) -> None:
    """Same orders, dropout masks, clipping and stopping; on CPU the products of one and of several members agree to 1e-6."""
    settings = TrainingSettings(batch_size=16, epochs=12, lr=1e-2, patience=2)
    ensemble = head(architecture=architecture)
    trainer = run(ensemble, settings, data(noise=2.0), together)
    assert len(set(trainer.best_epoch.tolist())) > 1, "the members should stop at different epochs for this test to mean anything"
    for i, seed in enumerate(SEEDS):
        alone = head([seed], architecture)
        single = run(alone, settings, data(noise=2.0))
        n = len(single.validation_loss)
        assert single.best_epoch[0] == trainer.best_epoch[i]
        np.testing.assert_allclose(np.array(trainer.validation_loss)[:n, i], np.array(single.validation_loss)[:, 0], rtol=1e-5)
        np.testing.assert_allclose(np.array(trainer.train_loss)[:n, i], np.array(single.train_loss)[:, 0], rtol=1e-5)
        assert np.isnan(np.array(trainer.train_loss)[n:, i]).all()
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(value[0], ensemble.state_dict()[name][i], rtol=1e-5, atol=1e-6, msg=name)


def test_one_step_is_that_of_torch() -> None:
    """Second implementation: one epoch of one member without dropout, by autograd, clip_grad_norm_ and AdamW of torch."""
    pairs = data(40)._replace(train=np.arange(30), validation=np.arange(30, 40))
    settings = TrainingSettings(batch_size=512, epochs=4, max_grad_norm=0.05)
    model, again = head([7]), head([7])
    for module in [*model.modules(), *again.modules()]:
        if hasattr(module, "p"):
            module.p = 0.0
    EnsembleTrainer(model, pairs, settings).run_epoch()
    optimizer = torch.optim.AdamW(again.parameters(), lr=5e-4, weight_decay=5e-4)
    known = torch.from_numpy(~np.isnan(pairs.targets[:30]))
    scores = again.train().member_scores(torch.from_numpy(pairs.features[:30]))[0][0]
    targets, weights = (torch.from_numpy(v[:30].astype(np.float32))[known] for v in (pairs.targets, pairs.weights))
    ((weights * (scores[known] - targets) ** 2).sum() / weights.sum()).backward()
    assert torch.nn.utils.clip_grad_norm_(again.parameters(), 0.05) > 0.05
    optimizer.step()
    for name, value in again.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_clipping_is_per_member() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(2, 2, 2))]
    gradients = [torch.randn(2, 3), torch.randn(2, 2, 2)]
    for g in gradients:
        g[0] *= 0.01
    expected = []
    for member in range(2):
        own = [torch.nn.Parameter(torch.zeros_like(g[member])) for g in gradients]
        for p, g in zip(own, gradients):
            p.grad = g[member].clone()
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        expected.append([p.grad for p in own])
    for p, g in zip(parameters, gradients):
        p.grad = g.clone()
    clip_by_member(parameters, 1.0)
    for i, p in enumerate(parameters):
        torch.testing.assert_close(p.grad, torch.stack([expected[0][i], expected[1][i]]))


def test_published_settings() -> None:
    """Table 13 and the released code: AdamW 5e-4 / 5e-4, 120 epochs of a cosine from 5e-4 towards 2.5e-5."""
    s = TrainingSettings()
    assert (s.lr, s.weight_decay, s.batch_size, s.epochs, s.patience, s.max_grad_norm, s.ce_weight) == (5e-4, 5e-4, 512, 120, 16, 1.0, 0.35)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=120, eta_min=2.5e-5)
    for epoch in range(120):
        assert s.rate(epoch) == pytest.approx(schedule.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        schedule.step()
    baseline = TrainingSettings.baseline()
    assert (baseline.lr, baseline.weight_decay, baseline.epochs, baseline.patience, baseline.max_grad_norm) == (1e-3, 1e-4, 80, 12, None)
    assert baseline.rate(0) == baseline.rate(79) == 1e-3


def test_it_learns_what_is_there_and_nothing_from_noise() -> None:
    pairs = data(400)._replace(train=np.arange(250), validation=np.arange(250, 300))
    test = np.arange(300, 400)
    known = ~np.isnan(pairs.targets[test])
    settings = TrainingSettings(batch_size=64, epochs=20, lr=5e-3)
    model = head([7, 13])
    run(model, settings, pairs)
    scores = model.predict(pairs.features[test]).question_scores.numpy()
    assert np.corrcoef(scores[known], pairs.targets[test][known])[0, 1] > 0.7
    shuffled = pairs._replace(targets=np.random.default_rng(1).permutation(pairs.targets))
    null = head([7, 13])
    run(null, settings, shuffled)
    scores = null.predict(pairs.features[test]).t_pas.numpy()
    assert abs(np.corrcoef(scores, np.nanmean(pairs.targets[test, :6], axis=1))[0, 1]) < 0.35


@pytest.mark.parametrize("epochs", [0, 3])
@pytest.mark.parametrize("together", [True, False], ids=["one batched step", "steps in turn"])
def test_going_on_from_a_state_is_never_having_stopped(together: bool, epochs: int) -> None:
    whole = head()
    straight = run(whole, together=together)
    first = EnsembleTrainer(head(), data(), QUICK, together=together)
    for _ in range(epochs):
        first.run_epoch()
    other = head(architecture="mlp")
    second = EnsembleTrainer(other, data(), QUICK, together=together)
    second.load_state({name: value.clone() for name, value in first.state().items()})
    assert second.epoch == epochs
    while not second.finished:
        second.run_epoch()
    second.select()
    assert second.validation_loss == straight.validation_loss
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in other.state_dict().items())
    with pytest.raises(ValueError, match="does not fit this run"):
        EnsembleTrainer(head([1]), data(), QUICK).load_state(first.state())


def test_a_state_of_steps_in_turn_goes_on_batched_and_back() -> None:
    """As when a run moves from a CPU to a GPU; one member has stopped by then."""
    settings = TrainingSettings(batch_size=16, epochs=12, lr=1e-2, patience=2)
    straight = run(head(), settings, data(noise=2.0))
    for begin in (True, False):
        first = EnsembleTrainer(head(), data(noise=2.0), settings, together=begin)
        while not first.stopped.any():
            first.run_epoch()
        assert not first.stopped.all()
        second = EnsembleTrainer(head(), data(noise=2.0), settings, together=not begin)
        second.load_state(first.state())
        while not second.finished:
            second.run_epoch()
        assert torch.equal(second.best_epoch, straight.best_epoch)
        torch.testing.assert_close(second.best, straight.best, rtol=1e-5, atol=1e-6)


def test_validation_loss_over_the_whole_set_or_as_the_mean_of_batches() -> None:
    n = 512 + 5
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n + 4, 4 * DIM + 1)).astype(np.float32)
    targets = np.concatenate([np.full((4, 12), 0.5), np.full((512, 12), 0.5), np.ones((5, 12))])
    pairs = PairData(x, targets, np.ones_like(targets), np.arange(4), np.arange(4, n + 4))
    losses = {}
    for rule in ("paper", "released_code"):
        model = head([7])
        trainer = EnsembleTrainer(model, pairs, TrainingSettings(epochs=1, validation_loss=rule))
        losses[rule] = trainer.run_epoch()[1][0]
        error = (model.eval().predict(x[4:]).member_scores[0].numpy() - targets[4:]) ** 2
        expected = error.mean() if rule == "paper" else (error[:512].mean() + error[512:].mean()) / 2
        assert losses[rule] == pytest.approx(expected, rel=1e-4)
    assert losses["released_code"] > 2 * losses["paper"]


def test_cross_entropy_takes_halves_to_even() -> None:
    model = head([7], "ordinal_prototype")
    pairs = data(8)._replace(train=np.arange(6), validation=np.arange(6, 8), targets=np.tile([0, 0.25, 0.5, 0.75, 1, 0], (8, 2)))
    trainer = EnsembleTrainer(model.eval(), pairs, TrainingSettings())
    scores, logits = model.member_scores(torch.from_numpy(pairs.features[:6]))
    total, weight = trainer._errors(scores, logits, torch.arange(6))
    classes = np.tile([0, 0, 1, 2, 2, 0], (6, 2))
    log_p = logits[0].log_softmax(-1).detach().numpy()
    entropy = -np.take_along_axis(log_p, classes[..., None], -1)[..., 0]
    expected = (pairs.weights[:6] * ((scores[0].detach().numpy() - pairs.targets[:6]) ** 2 + 0.35 * entropy)).sum()
    assert total[0].item() == pytest.approx(expected, rel=1e-4) and weight.item() == pytest.approx(pairs.weights[:6].sum(), rel=1e-5)


def test_thresholds_are_those_of_a_plain_search() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((60, 12))
    targets = np.clip(np.round(4 * (scores + 0.2 * rng.standard_normal(scores.shape))) / 4, 0, 1)
    targets[:, 11] = np.nan
    targets[:30, 2] = np.nan
    found = fit_thresholds(scores, targets)
    assert found[11] == [0.25, 0.75]
    for q in range(3):
        known = ~np.isnan(targets[:, q])
        best = (math.inf, None)
        for low in np.linspace(0.05, 0.55, 51):
            for high in np.linspace(0.45, 0.95, 51):
                if high > low + 0.05:
                    snapped = np.select([scores[known, q] < low, scores[known, q] < high], [0, 0.5], 1)
                    error = round(float(np.abs(snapped - targets[known, q]).sum()), 9)
                    if error < best[0]:
                        best = (error, [low, high])
        assert found[q] == pytest.approx(best[1])


def test_bad_data_are_refused() -> None:
    pairs = data()
    bad_features = pairs.features.copy()
    bad_features[5, 0] = np.nan
    cases = [
        (pairs._replace(features=pairs.features[:, :-1]), "this head takes"),
        (pairs._replace(weights=pairs.weights[:5]), "targets and weights have shapes"),
        (pairs._replace(targets=pairs.targets + 1), "targets must be in"),
        (pairs._replace(weights=-pairs.weights), "weights 0 or more"),
        (pairs._replace(train=np.arange(0)), "training split has no pair"),
        (pairs._replace(validation=np.arange(60, 80)), "overlap"),
        (pairs._replace(features=bad_features), "training split have NaN"),
    ]
    for broken, message in cases:
        with pytest.raises(ValueError, match=message):
            EnsembleTrainer(head(), broken, QUICK)
    for changes, message in (({"validation_loss": "other"}, "validation_loss is 'other'"), ({"epochs": 0}, "at least 1")):
        with pytest.raises(ValueError, match=message):
            TrainingSettings(**changes)
    with pytest.raises(ValueError, match="not finite in epoch"):
        run(head(), TrainingSettings(lr=1e18, max_grad_norm=None, epochs=3))
