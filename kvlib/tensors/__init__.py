"""The tensor half: bytes and arithmetic. It never decides who owns a slot; the memory half does.

Axis letters in shapes: `B` batch, `T` tokens of a step, `Hq` query heads, `Hkv` KV heads, `D`
head dimension, `L` layers.
"""
