"""Models of other libraries as they are: torchvision, Hugging Face, LoRA by peft."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedkin.core.problem import Problem
from fedkin.methods import FedAvg
from fedkin.runs.training import Settings, Trainer
from tests.helpers import blobs, federation, run
from tests.zoo import ResNet18, zoo_data


def text_classifier() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def with_lora() -> nn.Module:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, lora_dropout=0.1,
                           target_modules=["query", "value"])  # fmt: skip
    return peft.get_peft_model(text_classifier(), lora)


@pytest.mark.parametrize("make", [text_classifier, with_lora])
def test_a_hugging_face_classifier_trains_the_same_in_every_engine(make) -> None:
    module = make()
    problem = Problem(module, zoo_data("embedding"), batch_size=4)
    assert problem.size == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert problem.input_dtype == torch.int64
    assert problem.spec.random
    models = []
    for engine, strategy in (("embedded", "autograd:1:1x1"), ("embedded", "stacked"), ("wire", "")):
        fed = federation(problem, engine, strategy)
        models.append(run(FedAvg(lr=0.1, local_steps=2), fed, 1).x)
    assert (models[0] - problem.initial[0]).abs().max() > 0
    for model in models[1:]:
        torch.testing.assert_close(model, models[0], rtol=0, atol=1e-5)


def test_a_hugging_face_classifier_is_judged_as_it_answers() -> None:
    problem = Problem(text_classifier(), zoo_data("embedding"), batch_size=4)
    result = Trainer(problem, FedAvg(lr=0.1), Settings(rounds=1, baseline=False)).run()
    x, y = problem.data.test[0]
    with torch.no_grad():
        loss = F.cross_entropy(result.personal.at(0)(x).logits, y).item()
    assert result.clients["personal_loss"].iloc[0] == pytest.approx(loss, rel=1e-5)


def resnet18(classes: int) -> nn.Module:
    """torchvision's where it can be imported, else one that is built alike, but narrow."""
    torch.manual_seed(0)
    try:
        from torchvision import models
    except (ImportError, RuntimeError):  # none, or one that was built for another torch
        return ResNet18(classes, width=8)
    return models.resnet18(num_classes=classes)


def test_our_stand_in_for_resnet_18_is_as_large_as_torchvisions() -> None:
    with torch.device("meta"):
        module = ResNet18(1000)
    assert sum(p.numel() for p in module.parameters()) == 11_689_512  # as torchvision tells it
    assert len(module.state_dict()) == 122


def test_a_resnet_18_as_torchvision_has_it_trains_as_it_is() -> None:
    problem = Problem(
        resnet18(3), blobs(clients=2, samples=4, dimension=3072, shape=(3, 32, 32)), batch_size=4
    )
    method = FedAvg(lr=0.01, local_steps=1)
    settings = Settings(rounds=1, baseline=False, threads=1, strategy="autograd:1:1x1")
    result = Trainer(problem, method, settings).run()
    x, y = problem.data.test[1]
    with torch.no_grad():
        loss = F.cross_entropy(result.personal.at(1)(x), y).item()
    assert result.clients["personal_loss"].iloc[1] == pytest.approx(loss, rel=1e-3)
