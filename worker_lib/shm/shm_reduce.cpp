#include "worker_lib/shm/shm_reduce.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <type_traits>

// A copy of what follows for processors with AVX2, chosen when the program starts. Not where a
// sanitizer is at work, which is not ready by then; and no fused multiplications, so that both
// copies give the same bits.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define DDPRUN_FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define DDPRUN_FOR_EACH_PROCESSOR
#endif
#define DDPRUN_PART_OF_IT __attribute__((always_inline)) inline

namespace ddprun::shm {
namespace {

// How a type is stored and calculated with.
template <typename Stored>
struct Plain {
  using Element = Stored;
  using Value = Stored;
  static DDPRUN_PART_OF_IT Value load(Element element) { return element; }
  static DDPRUN_PART_OF_IT Element store(Value value) { return value; }
};

struct BFloat16 {
  using Element = std::uint16_t;
  using Value = float;
  static DDPRUN_PART_OF_IT float load(std::uint16_t element) {
    return std::bit_cast<float>(std::uint32_t{element} << 16);
  }
  // To the nearest, ties to even.
  static DDPRUN_PART_OF_IT std::uint16_t store(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<std::uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
};

struct Float16 {
  using Element = std::uint16_t;
  using Value = float;
  // The exponent is moved by a multiplication, which does subnormals as well.
  static DDPRUN_PART_OF_IT float load(std::uint16_t element) {
    const std::uint32_t sign = std::uint32_t{element & 0x8000U} << 16;
    const std::uint32_t rest = std::uint32_t{element & 0x7fffU} << 13;
    const float moved = std::bit_cast<float>(rest) * 0x1p112F;
    const std::uint32_t finite = std::bit_cast<std::uint32_t>(moved);
    const std::uint32_t special = rest | 0x7f800000;
    return std::bit_cast<float>(sign | ((element & 0x7c00) == 0x7c00 ? special : finite));
  }
  static DDPRUN_PART_OF_IT std::uint16_t store(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000;
    const std::uint32_t size = bits & 0x7fffffff;
    // A subnormal of float16 is what is left of the sum with one half.
    const float above = std::bit_cast<float>(size) + 0.5F;
    const std::uint32_t small = std::bit_cast<std::uint32_t>(above) - 0x3f000000;
    const std::uint32_t normal = (size - 0x38000000 + 0xfff + ((size >> 13) & 1)) >> 13;
    const std::uint32_t finite = size < 0x38800000 ? small : normal;
    const std::uint32_t special = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    return static_cast<std::uint16_t>(sign | (size < 0x477ff000 ? finite : special));
  }
};

struct Bool {
  using Element = std::uint8_t;
  using Value = std::uint8_t;
  static DDPRUN_PART_OF_IT Value load(Element element) { return element != 0; }
  static DDPRUN_PART_OF_IT Element store(Value value) { return value; }
};

// Integers wrap around: calculated as unsigned ones, at least as wide as int so that nothing
// is promoted to a signed type in between.
template <typename Value>
DDPRUN_PART_OF_IT auto wrapping(Value value) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<
        std::conditional_t<(sizeof(Value) < 4), std::uint32_t, std::make_unsigned_t<Value>>>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <typename Value>
  DDPRUN_PART_OF_IT Value operator()(Value a, Value b) const {
    return static_cast<Value>(wrapping(a) + wrapping(b));
  }
};
struct Product {
  template <typename Value>
  DDPRUN_PART_OF_IT Value operator()(Value a, Value b) const {
    return static_cast<Value>(wrapping(a) * wrapping(b));
  }
};
struct Minimum {
  template <typename Value>
  DDPRUN_PART_OF_IT Value operator()(Value a, Value b) const {
    return a < b || a != a ? a : b;  // NOLINT(misc-redundant-expression): of a NaN it is not
  }
};
struct Maximum {
  template <typename Value>
  DDPRUN_PART_OF_IT Value operator()(Value a, Value b) const {
    return a > b || a != a ? a : b;  // NOLINT(misc-redundant-expression): as above
  }
};
// Block by block through an array of its own, which overlaps with nothing: so the compiler makes
// vectors of it, and `to` may be where something comes from.
template <typename Kind, typename Operation>
DDPRUN_PART_OF_IT void reduce_as(void* to, const void* const* from, int ranks, std::size_t count,
                                 bool is_average) {
  using Element = typename Kind::Element;
  using Value = typename Kind::Value;
  constexpr std::size_t kBlock = 1024;
  Value sum[kBlock];
  auto* const out = static_cast<Element*>(to);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    const auto* const first = static_cast<const Element*>(from[0]) + begin;
    for (std::size_t i = 0; i < size; ++i) sum[i] = Kind::load(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const auto* const next = static_cast<const Element*>(from[rank]) + begin;
      for (std::size_t i = 0; i < size; ++i) {
        sum[i] = static_cast<Value>(Operation()(sum[i], Kind::load(next[i])));
      }
    }
    if (is_average) {
      using Wide = std::conditional_t<
          std::is_floating_point_v<Value>, Value,
          std::conditional_t<std::is_signed_v<Value>, std::int64_t, std::uint64_t>>;
      const auto divisor = static_cast<Wide>(ranks);
      for (std::size_t i = 0; i < size; ++i) sum[i] = static_cast<Value>(sum[i] / divisor);
    }
    for (std::size_t i = 0; i < size; ++i) out[begin + i] = Kind::store(sum[i]);
  }
}

template <typename Kind>
DDPRUN_PART_OF_IT void reduce_type(Op op, void* to, const void* const* from, int ranks,
                                   std::size_t count) {
  switch (op) {
    case Op::kSum:
      return reduce_as<Kind, Sum>(to, from, ranks, count, /*is_average=*/false);
    case Op::kAverage:
      return reduce_as<Kind, Sum>(to, from, ranks, count, /*is_average=*/true);
    case Op::kProduct:
      return reduce_as<Kind, Product>(to, from, ranks, count, /*is_average=*/false);
    case Op::kMinimum:
      return reduce_as<Kind, Minimum>(to, from, ranks, count, /*is_average=*/false);
    case Op::kMaximum:
      return reduce_as<Kind, Maximum>(to, from, ranks, count, /*is_average=*/false);
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
      if constexpr (std::is_integral_v<typename Kind::Value>) {
        if (op == Op::kAnd) return reduce_as<Kind, std::bit_and<>>(to, from, ranks, count, false);
        if (op == Op::kOr) return reduce_as<Kind, std::bit_or<>>(to, from, ranks, count, false);
        return reduce_as<Kind, std::bit_xor<>>(to, from, ranks, count, false);
      }
      break;
    case Op::kNone:
      break;
  }
  std::abort();  // why_not() says so before
}

// One function for each type, so that each is a reasonable unit to compile.
#define DDPRUN_REDUCE(name, Kind)                                                          \
  DDPRUN_FOR_EACH_PROCESSOR void name(Op op, void* to, const void* const* from, int ranks, \
                                      std::size_t count) {                                 \
    reduce_type<Kind>(op, to, from, ranks, count);                                         \
  }
DDPRUN_REDUCE(reduce_float32, Plain<float>)
DDPRUN_REDUCE(reduce_float64, Plain<double>)
DDPRUN_REDUCE(reduce_bfloat16, BFloat16)
DDPRUN_REDUCE(reduce_float16, Float16)
DDPRUN_REDUCE(reduce_int8, Plain<std::int8_t>)
DDPRUN_REDUCE(reduce_int16, Plain<std::int16_t>)
DDPRUN_REDUCE(reduce_int32, Plain<std::int32_t>)
DDPRUN_REDUCE(reduce_int64, Plain<std::int64_t>)
DDPRUN_REDUCE(reduce_uint8, Plain<std::uint8_t>)
DDPRUN_REDUCE(reduce_uint16, Plain<std::uint16_t>)
DDPRUN_REDUCE(reduce_uint32, Plain<std::uint32_t>)
DDPRUN_REDUCE(reduce_uint64, Plain<std::uint64_t>)
DDPRUN_REDUCE(reduce_bool, Bool)
#undef DDPRUN_REDUCE

// "Any" and "all" are what the wrapping sum and the product of truth values would be, were they
// numbers without end.
Op for_bool(Op op) {
  if (op == Op::kSum || op == Op::kMaximum) return Op::kOr;
  if (op == Op::kProduct || op == Op::kMinimum) return Op::kAnd;
  return op;
}

}  // namespace

const char* name_of(Type type) {
  constexpr const char* kNames[] = {"bytes",  "float32", "float64", "bfloat16", "float16",
                                    "int8",   "int16",   "int32",   "int64",    "uint8",
                                    "uint16", "uint32",  "uint64",  "bool"};
  return kNames[static_cast<std::size_t>(type)];
}

const char* name_of(Op op) {
  constexpr const char* kNames[] = {"",    "SUM",  "AVG", "PRODUCT", "MIN",
                                    "MAX", "BAND", "BOR", "BXOR"};
  return kNames[static_cast<std::size_t>(op)];
}

std::size_t size_of(Type type) {
  constexpr std::size_t kSizes[] = {1, 4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return kSizes[static_cast<std::size_t>(type)];
}

std::string why_not(Type type, Op op) {
  const bool is_bits = op == Op::kAnd || op == Op::kOr || op == Op::kXor;
  const bool is_float = type == Type::kFloat32 || type == Type::kFloat64 ||
                        type == Type::kBFloat16 || type == Type::kFloat16;
  if (type == Type::kUnknown) return "elements of this type can be moved but not reduced";
  if (is_bits && is_float) return std::string(name_of(op)) + " is for integers and bool";
  if (op == Op::kAverage && type == Type::kBool) return "bool has no average";
  return {};
}

void reduce(Type type, Op op, void* to, const void* const* from, int ranks, std::size_t count) {
  using Reduce = void (*)(Op, void*, const void* const*, int, std::size_t);
  static const Reduce kOf[] = {nullptr,        reduce_float32, reduce_float64, reduce_bfloat16,
                               reduce_float16, reduce_int8,    reduce_int16,   reduce_int32,
                               reduce_int64,   reduce_uint8,   reduce_uint16,  reduce_uint32,
                               reduce_uint64,  reduce_bool};
  if (type == Type::kUnknown) std::abort();  // why_not() says so before
  kOf[static_cast<std::size_t>(type)](type == Type::kBool ? for_bool(op) : op, to, from, ranks,
                                      count);
}

}  // namespace ddprun::shm
