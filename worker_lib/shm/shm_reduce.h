// Sums, and what else a reduction is, over the ranks' elements in the order of ranks. Pure; any
// thread. The result has the same bits wherever it is calculated, and for two ranks those of Gloo:
// bfloat16 and float16 are added up as float and rounded once, integers wrap around, a minimum or
// maximum with a NaN is NaN, and bool is "any" (sum, maximum, or) or "all" (product, minimum, and).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddprun::shm {

// The tables of shm_reduce.cpp are in these orders.
enum class Type : std::uint32_t {
  kUnknown,  // may be moved, not reduced
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
};

enum class Op : std::uint32_t {
  kNone,
  kSum,
  kAverage,  // the sum divided by the number of ranks; of integers, towards zero
  kProduct,
  kMinimum,
  kMaximum,
  kAnd,
  kOr,
  kXor,
};

const char* name_of(Type type);
const char* name_of(Op op);
std::size_t size_of(Type type);

// Empty, or why not: bits of a float, an average of truth values.
std::string why_not(Type type, Op op);

// to[i] = from[0][i] op from[1][i] op … from[ranks - 1][i]. `to` may be one of those it comes from.
// All aligned as the type is; a pair for which why_not() is empty.
void reduce(Type type, Op op, void* to, const void* const* from, int ranks, std::size_t count);

}  // namespace ddprun::shm
