"""What vmap leaves open: state, tensors from outside, and what would remain after a call.

In: the model, the loss function, and every tensor that the recorder sees.  Out: refusals and
warnings.  Imports trees and kernels.
"""
