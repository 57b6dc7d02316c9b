// The generators of random numbers of all ranks as arrays of a checkpoint, and back: Torch's default
// generator of the CPU ("rng.cpu") and of the rank's CUDA device ("rng.cuda"), each [world size,
// bytes of a state]. One thread; gather_rng() is collective.
#pragma once

#include <cstdint>

#include "ddprun/context.h"
#include "worker_lib/checkpoint/tensor_arrays.h"

namespace ddprun {

// Whole on rank 0; empty on the others.
NamedTensors gather_rng(Context& context);

// This rank's from what is there of gather_rng()'s; otherwise (a larger world, another device,
// another LibTorch's state) seeded with `seed_for_new`.
void restore_rng(const NamedTensors& saved, const Context& context, std::uint64_t seed_for_new);

// Those of this rank alone, by the same names, and back; not collective. A state that is not there, or another
// LibTorch's, is seeded.
NamedTensors generator_states(const Context& context);
void restore_generators(const NamedTensors& saved, const Context& context,
                        std::uint64_t seed_for_new);

// Of a rank that joins at this point: different for every rank and step, the same every time.
std::uint64_t seed_of_new_rank(std::uint64_t seed, std::int64_t step, int rank);

}  // namespace ddprun
