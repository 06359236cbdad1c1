"""Pretrained language models as networks of a recipe; they need the extra `hf`.

pretrained   the encoders by name: their files, what their weights have seen
tokens       texts as numbers, padded to public lengths
classifier   an encoder with a new head for the classes
adapters     LoRA: a few trained matrices beside frozen weights
"""
