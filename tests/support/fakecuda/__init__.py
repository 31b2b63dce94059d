"""A CUDA device that is a CPU underneath: real models decode real tokens on it, and it refuses what CUDA refuses.

* Every tensor of device `cuda` is a wrapper of a CPU tensor (`tensors.Fake`). An operator that gets one of them and a
  CPU tensor with dimensions, or tensors of two GPUs, is refused.
* What makes the host wait (item, nonzero, boolean masks, copies from and to pageable memory) is counted with the line
  of specbench that did it, and refused in a capture. Copies to pinned memory arrive when the host has waited for them.
* Graphs are recorded operator by operator, and replayed on the same addresses. Memory that a graph does not own must
  be where it was: one that was freed or has moved is refused, as an illegal access is.
* Events have a time when the queue comes to them, and are read only once the host knows that they are over.
* Kernels are counted by operator. Attention is one.

What it cannot show: numerics, which kernel of several is chosen and whether there is one for a dtype or shape, memory,
time, Triton, and races of two streams, which here are one queue. It has no inference mode, no generators of its
own, and no gradients.
"""

from tests.support.fakecuda.installed import missing, simulated
from tests.support.fakecuda.machine import Machine, SimulatedError

__all__ = ["Machine", "SimulatedError", "missing", "simulated"]
