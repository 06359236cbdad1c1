"""Pictures: classes, maps, reconstruction."""

from __future__ import annotations

from .records import class_of_picture, map_of_picture, picture_alone
from .sizes import line, lines

CLASS, MAP = "classes", "maps"
SHIFTED = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
PYRAMID = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 16, 16, 32],
    "num_attention_heads": [1, 2, 2, 4],
    "decoder_hidden_size": 16,
}

LINES = (
    *lines(
        CLASS,
        class_of_picture,
        "ViTForImageClassification DeiTForImageClassification "
        "Dinov2ForImageClassification Dinov2WithRegistersForImageClassification "
        "ViTMSNForImageClassification IJepaForImageClassification",
    ),
    line(CLASS, class_of_picture, "BeitForImageClassification", use_relative_position_bias=True),
    line(CLASS, class_of_picture, "Data2VecVisionForImageClassification"),
    line("reconstruction", picture_alone, "ViTMAEForPreTraining", decoder_hidden_size=16,
         decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=24),
    line(CLASS, class_of_picture, "SwinForImageClassification", **SHIFTED),
    line(CLASS, class_of_picture, "Swinv2ForImageClassification", **SHIFTED),
    line(CLASS, class_of_picture, "ConvNextForImageClassification", hidden_sizes=[8, 16],
         depths=[1, 1], num_stages=2),
    line(CLASS, class_of_picture, "ConvNextV2ForImageClassification", hidden_sizes=[8, 16],
         depths=[1, 1], num_stages=2),
    line(CLASS, class_of_picture, "PoolFormerForImageClassification", hidden_sizes=[8, 8, 16, 16],
         depths=[1, 1, 1, 1], patch_sizes=[7, 3, 3, 3]),
    line(CLASS, class_of_picture, "ResNetForImageClassification", **STAGES),
    line(CLASS, class_of_picture, "SegformerForImageClassification", **PYRAMID),
    line(MAP, map_of_picture, "SegformerForSemanticSegmentation", **PYRAMID),
    line(CLASS, class_of_picture, "FocalNetForImageClassification", embed_dim=8, depths=[1, 1],
         focal_levels=[1, 1], focal_windows=[3, 3]),
    line(CLASS, class_of_picture, "HieraForImageClassification", image_size=[32, 32], embed_dim=16,
         depths=[1, 1, 1], num_heads=[1, 2, 2], patch_size=[4, 4], patch_stride=[4, 4],
         patch_padding=[0, 0], query_stride=[2, 2], masked_unit_size=[4, 4], num_query_pool=2,
         embed_dim_multiplier=2.0),
    line(CLASS, class_of_picture, "PvtForImageClassification", depths=[1, 1, 1, 1],
         hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 1, 2, 2],
         sequence_reduction_ratios=[4, 2, 1, 1], patch_sizes=[4, 2, 2, 2]),
    line(CLASS, class_of_picture, "SiglipForImageClassification", vision_config={
             "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "image_size": 32, "patch_size": 8,
         }),
)  # fmt: skip
