// Values as bytes and back, for what ranks send each other as an object (broadcast_object and
// others in collectives.h). Serialisable are: numbers, bool, enums, strings, structs of such plain
// data (no pointers), std::array, pair, tuple, optional, variant, vectors, lists, maps and sets of all
// kinds, complex, chrono durations, torch::Tensor (collectives.h), all of them nested, and a struct that
// names its fields once, for both directions:
//
//   struct Score {
//     std::string name;
//     std::map<int, double> per_class;
//     template <typename Fields>
//     void fields(Fields& field) { field(name, per_class); }
//   };
//
// For a type that is not yours specialise Codec<T>. The bytes are for the other ranks of one job
// (same program, same byte order), not for files. Decoding checks every length and the type, and
// throws Failure (kProtocol) for bytes that are no T. Values: any thread.
// A struct of plain data that holds a pointer compiles, and arrives as nonsense.
#pragma once

#include <array>
#include <chrono>
#include <complex>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "ddprun/error.h"

namespace ddprun {

// Appends to a string.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& text) : text_(text) {}

  void bytes(const void* from, std::size_t count) {
    if (count > 0) text_.append(static_cast<const char*>(from), count);
  }
  void count(std::size_t value) {
    const auto wide = static_cast<std::uint64_t>(value);
    bytes(&wide, sizeof wide);
  }

 private:
  std::string& text_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view text) : left_(text) {}

  std::string_view view(std::size_t count) {
    if (count > left_.size()) {
      throw Failure(ErrorCode::kProtocol,
                    "the bytes of a value end too early: does every rank, and one that takes "
                    "another's place, send and keep the same?");
    }
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  void bytes(void* to, std::size_t count) {
    const std::string_view from = view(count);
    if (count > 0) std::memcpy(to, from.data(), count);
  }
  // A number of elements of at least `least` bytes each: what the rest cannot hold is refused
  // before memory is taken for it.
  std::size_t count(std::size_t least = 1) {
    std::uint64_t value = 0;
    bytes(&value, sizeof value);
    if (value > left_.size() / least) {
      throw Failure(ErrorCode::kProtocol, "a value says that it has " + std::to_string(value) +
                                              " elements, more than its bytes can hold");
    }
    return static_cast<std::size_t>(value);
  }
  std::size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

// How a T is written and read: static void write(ByteWriter&, const T&), static T read(ByteReader&).
// write() gives at least one byte.
template <typename T>
struct Codec;

template <typename T>
concept Serialisable = requires(ByteWriter& writer, ByteReader& reader, const T& value) {
  Codec<T>::write(writer, value);
  { Codec<T>::read(reader) } -> std::same_as<std::remove_const_t<T>>;
};

namespace detail {

struct AnyFields {
  void operator()(auto&...) {}
};

template <typename T>
concept HasFields = std::is_class_v<T> && requires(T& value, AnyFields& fields) {
  value.fields(fields);
};

// Numbers and what stands for one or two.
template <typename T>
inline constexpr bool kIsValue = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <typename T>
inline constexpr bool kIsValue<std::complex<T>> = true;
template <typename Count, typename Period>
inline constexpr bool kIsValue<std::chrono::duration<Count, Period>> = true;

// What is its own bytes.
template <typename T>
concept Plain = (kIsValue<T> || (std::is_trivially_copyable_v<T> && std::is_aggregate_v<T> &&
                                 std::is_class_v<T> && std::is_default_constructible_v<T>)) &&
                !std::is_same_v<T, bool> && !HasFields<T>;

// Vectors of these travel as one block.
template <typename T>
inline constexpr bool kIsBlock = kIsValue<T> && !std::is_same_v<T, bool>;

// FNV-1a of the type's name: ranks that mean different types find out before they misread bytes.
template <typename T>
std::uint64_t type_mark() {
  std::uint64_t hash = 14695981039346656037U;
  for (const char* at = typeid(T).name(); *at != '\0'; ++at) {
    hash = (hash ^ static_cast<unsigned char>(*at)) * 1099511628211U;
  }
  return hash;
}

// What is filled by insertion at its end: vectors, maps, sets.
template <typename T>
concept Container = requires(T& values, typename T::value_type value) {
  values.insert(values.end(), std::move(value));
}
&&Serialisable<typename T::value_type>;

}  // namespace detail

template <detail::Plain T>
struct Codec<T> {
  static void write(ByteWriter& writer, const T& value) { writer.bytes(&value, sizeof value); }
  static T read(ByteReader& reader) {
    T value{};
    reader.bytes(&value, sizeof value);
    return value;
  }
};

template <>
struct Codec<bool> {
  static void write(ByteWriter& writer, bool value) { writer.bytes(&value, 1); }
  static bool read(ByteReader& reader) {
    unsigned char byte = 0;
    reader.bytes(&byte, 1);
    if (byte > 1) throw Failure(ErrorCode::kProtocol, "a bool is neither false nor true");
    return byte == 1;
  }
};

template <detail::HasFields T>
struct Codec<T> {
  static void write(ByteWriter& writer, const T& value) {
    const auto write_all = [&writer]<typename... Parts>(const Parts&... parts) {
      static_assert(sizeof...(Parts) > 0, "name the fields: field(a, b)");
      (Codec<Parts>::write(writer, parts), ...);
    };
    const_cast<T&>(value).fields(write_all);  // which takes every field as const
  }
  static T read(ByteReader& reader) {
    T value;
    const auto read_all = [&reader]<typename... Parts>(Parts&... parts) {
      ((parts = Codec<Parts>::read(reader)), ...);
    };
    value.fields(read_all);
    return value;
  }
};

template <>
struct Codec<std::string> {
  static void write(ByteWriter& writer, const std::string& value) {
    writer.count(value.size());
    writer.bytes(value.data(), value.size());
  }
  static std::string read(ByteReader& reader) {
    const std::size_t size = reader.count();
    return std::string(reader.view(size));
  }
};

template <detail::Container Values>
struct Codec<Values> {
  static void write(ByteWriter& writer, const Values& values) {
    writer.count(values.size());
    for (const auto& value : values) Codec<typename Values::value_type>::write(writer, value);
  }
  static Values read(ByteReader& reader) {
    Values values;
    for (std::size_t left = reader.count(); left > 0; --left) {
      values.insert(values.end(), Codec<typename Values::value_type>::read(reader));
    }
    return values;
  }
};

template <typename T>
requires detail::kIsBlock<T>
struct Codec<std::vector<T>> {
  static void write(ByteWriter& writer, const std::vector<T>& values) {
    writer.count(values.size());
    writer.bytes(values.data(), values.size() * sizeof(T));
  }
  static std::vector<T> read(ByteReader& reader) {
    std::vector<T> values(reader.count(sizeof(T)));
    reader.bytes(values.data(), values.size() * sizeof(T));
    return values;
  }
};

template <Serialisable T, std::size_t kSize>
requires(kSize > 0) struct Codec<std::array<T, kSize>> {
  static void write(ByteWriter& writer, const std::array<T, kSize>& values) {
    for (const T& value : values) Codec<T>::write(writer, value);
  }
  static std::array<T, kSize> read(ByteReader& reader) {
    std::array<T, kSize> values;
    for (T& value : values) value = Codec<T>::read(reader);
    return values;
  }
};

template <Serialisable T>
struct Codec<std::optional<T>> {
  static void write(ByteWriter& writer, const std::optional<T>& value) {
    Codec<bool>::write(writer, value.has_value());
    if (value) Codec<T>::write(writer, *value);
  }
  static std::optional<T> read(ByteReader& reader) {
    if (!Codec<bool>::read(reader)) return std::nullopt;
    return Codec<T>::read(reader);
  }
};

// Pair and tuple. The first part of what a map holds is const.
template <template <typename...> class Tuple, typename... Parts>
requires(sizeof...(Parts) > 0 && requires { std::tuple_size<Tuple<Parts...>>::value; } &&
         (Serialisable<std::remove_const_t<Parts>> && ...)) struct Codec<Tuple<Parts...>> {
  static void write(ByteWriter& writer, const Tuple<Parts...>& value) {
    std::apply(
        [&](const auto&... parts) {
          (Codec<std::decay_t<decltype(parts)>>::write(writer, parts), ...);
        },
        value);
  }
  static Tuple<Parts...> read(ByteReader& reader) {
    return Tuple<Parts...>{
        Codec<std::remove_const_t<Parts>>::read(reader)...};  // in order, as {} is
  }
};

template <Serialisable... Kinds>
struct Codec<std::variant<Kinds...>> {
  using Variant = std::variant<Kinds...>;
  static void write(ByteWriter& writer, const Variant& value) {
    Codec<std::uint32_t>::write(writer, static_cast<std::uint32_t>(value.index()));
    std::visit([&]<typename Kind>(const Kind& kind) { Codec<Kind>::write(writer, kind); }, value);
  }
  static Variant read(ByteReader& reader) {
    const auto index = Codec<std::uint32_t>::read(reader);
    std::optional<Variant> value;
    [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
      ((index == kIndices
            ? void(value.emplace(std::in_place_index<kIndices>, Codec<Kinds>::read(reader)))
            : void()),
       ...);
    }
    (std::index_sequence_for<Kinds...>());
    if (!value) throw Failure(ErrorCode::kProtocol, "a variant holds a kind that it does not have");
    return std::move(*value);
  }
};

// A type that is not Serialisable cannot be sent to other ranks: give it a fields() function, or
// specialise ddprun::Codec for it.
template <Serialisable T>
std::string to_bytes(const T& value) {
  std::string bytes;
  ByteWriter writer(bytes);
  Codec<std::uint64_t>::write(writer, detail::type_mark<T>());
  Codec<T>::write(writer, value);
  return bytes;
}

template <Serialisable T>
T from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  if (Codec<std::uint64_t>::read(reader) != detail::type_mark<T>()) {
    throw Failure(ErrorCode::kProtocol,
                  "a value of another type was sent: do all ranks run the same program, and make "
                  "the same calls in the same order?");
  }
  T value = Codec<T>::read(reader);
  if (reader.left() > 0) throw Failure(ErrorCode::kProtocol, "a value has bytes left over");
  return value;
}

}  // namespace ddprun
