"""Fine-tune a transformer with LoRA: `python examples/fine_tune_lora.py`.

The LoRA matrices and the head are trained with (epsilon, delta) = (3, 1e-5).  All other weights are
frozen and need no gradients and no noise.  The network has random weights and the language is
invented, so the script downloads nothing.  To use a pretrained BERT, replace `base`.
"""

from __future__ import annotations

import peft
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import psac

WORDS, LENGTH = 20, 8


def sentences(count: int) -> TensorDataset:
    """Sentences of eight words from one of two languages: words 0 to 9, or words 10 to 19."""
    language = torch.arange(count) % 2
    words = torch.randint(WORDS // 2, (count, LENGTH)) + language.unsqueeze(1) * WORDS // 2
    return TensorDataset(words, language)


def loss(model: nn.Module, words: Tensor, language: Tensor) -> Tensor:
    return model(input_ids=words, labels=language).loss


def main() -> None:
    torch.manual_seed(0)
    train, test = sentences(4_000), sentences(1_000)
    size = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=WORDS, num_attention_heads=4, num_labels=2, **size)
    base = BertForSequenceClassification(config)
    lora = peft.LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(base, lora)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    with psac.make_private(
        model, optimizer, train, batch_size=256, epochs=3, epsilon=3.0, delta=1e-5
    ) as private:
        for epoch in range(3):
            for batch in private.loader:
                private.step(loss, batch)
            with torch.no_grad():
                words, language = test.tensors
                accuracy = (model(input_ids=words).logits.argmax(1) == language).float().mean()
            print(f"epoch {epoch + 1}: accuracy {accuracy:.1%}")
        print(f"epsilon {private.epsilon():.3f}")


if __name__ == "__main__":
    main()
