#include "ddprun/npy.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "worker_lib/process/files.h"

namespace ddprun {
namespace {

static_assert(std::endian::native == std::endian::little, "bytes are swapped for big-endian files");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPrefix = 8;            // magic and version
constexpr std::size_t kMostHeader = 1 << 20;  // more than any array's dimensions need
constexpr std::size_t kAlignment = 64;        // of the data in files that we write
constexpr int kMostDimensions = 64;           // NumPy's own limit

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

tl::unexpected<Error> damaged(const std::string& path, const std::string& what) {
  return fail(ErrorCode::kDataLoss, path + " cannot be used: " + what);
}

// The header's dictionary, a Python literal, read left to right.
class Header {
 public:
  explicit Header(std::string_view text) : text_(text) {}

  // What is wrong, with its place in the text; nothing when all three keys were understood.
  std::optional<std::string> parse(NpyArray& array, bool& is_big_endian) {
    bool has_type = false, has_order = false, has_shape = false;
    if (!take('{')) return "a '{' is expected";
    while (!take('}')) {
      std::string key;
      if (!take_quoted(key) || !take(':')) return "a key in quotes and ':' are expected";
      std::optional<std::string> wrong;
      if (key == "descr") {
        wrong = parse_type(array, is_big_endian);
        has_type = true;
      } else if (key == "fortran_order") {
        wrong = parse_order(array);
        has_order = true;
      } else if (key == "shape") {
        wrong = parse_shape(array);
        has_shape = true;
      } else {
        wrong = "there is an unknown key '" + key + "'";
      }
      if (wrong) return wrong;
      if (!take(',') && !is_next('}')) return "a ',' or '}' is expected";
    }
    if (!has_type || !has_order || !has_shape) {
      return "one of 'descr', 'fortran_order' and 'shape' is missing";
    }
    return std::nullopt;
  }
  std::size_t at() const { return at_; }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_]) != nullptr) ++at_;
  }
  bool is_next(char c) {
    skip_spaces();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    const bool is_it = is_next(c);
    at_ += is_it ? 1 : 0;
    return is_it;
  }
  bool take_word(std::string_view word) {
    skip_spaces();
    const bool is_it = text_.substr(at_).starts_with(word);
    at_ += is_it ? word.size() : 0;
    return is_it;
  }
  bool take_quoted(std::string& value) {
    const char quote = is_next('"') ? '"' : '\'';
    if (!is_next(quote)) return false;
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return false;
    value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }

  std::optional<std::string> parse_type(NpyArray& array, bool& is_big_endian) {
    if (is_next('[')) {
      return "it holds records (a structured array); save each field as an array of its own";
    }
    std::string type;
    if (!take_quoted(type)) return "the type is expected in quotes";
    std::string_view rest = type;
    if (!rest.empty() && std::strchr("<>|=", rest[0]) != nullptr) {
      is_big_endian = rest[0] == '>';
      rest.remove_prefix(1);
    }
    int size = 0;
    const char* const end = rest.data() + rest.size();
    if (rest.size() >= 2) {
      const auto parsed = std::from_chars(rest.data() + 1, end, size);
      if (parsed.ec != std::errc() || parsed.ptr != end) size = 0;
    }
    const char kind = rest.empty() ? '?' : rest[0];
    if (!is_readable(kind, size)) {
      return "its elements are of type '" + type +
             "'; bool, integers, floats and complex numbers are read: convert it with "
             "array.astype(...)" +
             (kind == 'O' ? " (an array of Python objects)" : "");
    }
    array.kind = kind;
    array.element_size = size;
    return std::nullopt;
  }

  static bool is_readable(char kind, int size) {
    switch (kind) {
      case 'b':
        return size == 1;
      case 'i':
      case 'u':
        return size == 1 || size == 2 || size == 4 || size == 8;
      case 'f':
        return size == 2 || size == 4 || size == 8;
      case 'c':
        return size == 8 || size == 16;
      default:
        return false;
    }
  }

  std::optional<std::string> parse_order(NpyArray& array) {
    array.is_fortran_order = take_word("True");
    if (!array.is_fortran_order && !take_word("False")) return "True or False is expected";
    return std::nullopt;
  }

  std::optional<std::string> parse_shape(NpyArray& array) {
    if (!take('(')) return "the shape's '(' is expected";
    std::int64_t count = 1;
    while (!take(')')) {
      skip_spaces();
      std::int64_t size = -1;
      const char* const end = text_.data() + text_.size();
      const auto parsed = std::from_chars(text_.data() + at_, end, size);
      if (parsed.ec != std::errc() || size < 0) return "a dimension is expected, a number from 0";
      at_ = static_cast<std::size_t>(parsed.ptr - text_.data());
      take('L');  // NumPy under Python 2
      if (size > 0 && count > std::numeric_limits<std::int64_t>::max() / 16 / size) {
        return "the shape has more elements than there is memory";
      }
      if (size > 0) count *= size;
      array.shape.push_back(size);
      if (array.shape.size() > kMostDimensions) return "the shape has too many dimensions";
      if (!take(',') && !is_next(')')) return "a ',' or ')' is expected";
    }
    return std::nullopt;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

void swap_bytes(NpyArray& array) {
  const auto size =
      static_cast<std::ptrdiff_t>(array.kind == 'c' ? array.element_size / 2 : array.element_size);
  for (auto at = array.bytes.begin(); at != array.bytes.end(); at += size) {
    std::reverse(at, at + size);
  }
}

bool read_exactly(std::FILE* file, void* to, std::size_t count) {
  return count == 0 || std::fread(to, 1, count, file) == count;
}

std::int64_t data_size(const NpyArray& array) { return array.count() * array.element_size; }

}  // namespace

std::int64_t NpyArray::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

Result<NpyArray> read_npy(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rbe"));
  if (!file) return fail(error_from_errno(errno, "cannot open " + path));
  std::error_code no_size;
  const auto file_size = static_cast<std::int64_t>(std::filesystem::file_size(path, no_size));
  if (no_size) return fail(ErrorCode::kIo, path + " is no plain file: " + no_size.message());

  char prefix[kPrefix + 4];
  if (!read_exactly(file.get(), prefix, kPrefix) ||
      std::string_view(prefix, kMagic.size()) != kMagic) {
    return damaged(path,
                   "it is not a .npy file (it must begin with \\x93NUMPY); a .npz is a zip "
                   "archive of them: unpack it");
  }
  const int version = static_cast<std::uint8_t>(prefix[kMagic.size()]);
  if (version < 1 || version > 3) {
    return damaged(path, "it is of version " + std::to_string(version) +
                             " of the format, known are 1 to 3: save it anew with numpy.save");
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::size_t length = 0;
  if (!read_exactly(file.get(), prefix + kPrefix, length_bytes)) {
    return damaged(path, "it is cut off in its header");
  }
  for (std::size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | static_cast<std::uint8_t>(prefix[kPrefix + i]);
  }
  if (length > kMostHeader) {
    return damaged(path, "its header claims to be " + std::to_string(length) + " bytes long");
  }
  std::string text(length, '\0');
  if (!read_exactly(file.get(), text.data(), length)) {
    return damaged(path, "it is cut off in its header");
  }

  NpyArray array;
  bool is_big_endian = false;
  Header header(text);
  if (const auto wrong = header.parse(array, is_big_endian)) {
    return damaged(
        path, "at byte " + std::to_string(kPrefix + length_bytes + header.at()) + ": " + *wrong);
  }
  const auto begin = static_cast<std::int64_t>(kPrefix + length_bytes + length);
  if (file_size - begin != data_size(array)) {
    return damaged(path, "its header promises " + std::to_string(data_size(array)) +
                             " bytes of data from byte " + std::to_string(begin) +
                             " on, there are " + std::to_string(file_size - begin) +
                             ": was it copied completely?");
  }
  array.bytes.resize(static_cast<std::size_t>(data_size(array)));
  if (!read_exactly(file.get(), array.bytes.data(), array.bytes.size())) {
    return damaged(path, "it could not be read to its end");
  }
  if (is_big_endian) swap_bytes(array);
  return array;
}

Result<void> write_npy(const std::string& path, const NpyArray& array) {
  if (static_cast<std::int64_t>(array.bytes.size()) != data_size(array)) {
    return fail(ErrorCode::kInvalidArgument,
                "the array for " + path + " has " + std::to_string(array.bytes.size()) +
                    " bytes, its shape asks for " + std::to_string(data_size(array)));
  }
  std::string shape;
  for (const std::int64_t size : array.shape) shape += std::to_string(size) + ", ";
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);  // (3,) but (3, 4)
  std::string text = std::string("{'descr': '") + (array.element_size == 1 ? '|' : '<') +
                     array.kind + std::to_string(array.element_size) +
                     "', 'fortran_order': " + (array.is_fortran_order ? "True" : "False") +
                     ", 'shape': (" + shape + "), }";
  const std::size_t unpadded = kPrefix + 2 + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string file(kMagic);
  file +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  file += text;
  file.append(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size());
  return write_file_atomically(path, {file});
}

}  // namespace ddprun
