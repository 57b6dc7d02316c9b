#include "ddprun/idx.h"

#include <libdeflate.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "worker_lib/src/files.h"

namespace ddprun {
namespace {

// Large enough for every data set of this family, small enough that a damaged header cannot make us
// allocate the machine's memory.
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;
constexpr int kMostDimensions = 8;

tl::unexpected<Error> damaged(const std::string& path, const std::string& what) {
  return fail(ErrorCode::kDataLoss, path + " cannot be used: " + what);
}

std::int64_t big_endian(const std::uint8_t* bytes) {
  return (std::int64_t{bytes[0]} << 24) | (std::int64_t{bytes[1]} << 16) |
         (std::int64_t{bytes[2]} << 8) | std::int64_t{bytes[3]};
}

struct CloseGz {
  void operator()(gzFile file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<gzFile_s, CloseGz>;

// What zlib says is wrong, or that the file ended early.
std::string reason(gzFile file) {
  int code = Z_OK;
  const char* text = gzerror(file, &code);
  if (code == Z_ERRNO) return std::strerror(errno);
  if (code == Z_BUF_ERROR || code == Z_OK) return "it is cut off";
  return std::string("its gzip data is damaged (") + text + ")";
}

// Reads exactly `count` bytes; gzread itself takes at most an int's worth at a time.
bool read_exactly(gzFile file, std::uint8_t* to, std::int64_t count) {
  constexpr std::int64_t kChunk = 1 << 24;
  while (count > 0) {
    const int got = gzread(file, to, static_cast<unsigned>(std::min(count, kChunk)));
    if (got <= 0) return false;
    to += got;
    count -= got;
  }
  return true;
}

// What a gzip file of one piece holds, at the speed of libdeflate, which wants all of it in memory;
// none for anything else, also for what is damaged.
std::optional<std::vector<std::uint8_t>> gunzip(std::string_view file) {
  constexpr std::size_t kLeast = 18;            // a header and a trailer
  constexpr std::size_t kMostExpansion = 1032;  // no compression of this kind does more
  if (file.size() < kLeast) return std::nullopt;
  std::uint32_t size = 0;  // little-endian, at the end
  for (std::size_t i = 1; i <= 4; ++i) {
    size = size << 8 | static_cast<std::uint8_t>(file[file.size() - i]);
  }
  if (size > kMostExpansion * file.size()) return std::nullopt;
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> engine(
      libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (!engine) return std::nullopt;
  std::vector<std::uint8_t> bytes(size);
  std::size_t taken = 0;
  if (libdeflate_gzip_decompress_ex(engine.get(), file.data(), file.size(), bytes.data(), size,
                                    &taken, nullptr) != LIBDEFLATE_SUCCESS ||
      taken != file.size()) {
    return std::nullopt;
  }
  return bytes;
}

// None for what is not exactly an array.
std::optional<IdxArray> array_of(std::vector<std::uint8_t> bytes) {
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 0x08) return std::nullopt;
  const std::size_t header = 4 + 4 * std::size_t{bytes[3]};
  if (bytes[3] == 0 || bytes[3] > kMostDimensions || bytes.size() < header) return std::nullopt;
  IdxArray array;
  const auto left = static_cast<std::int64_t>(bytes.size() - header);
  for (std::size_t at = 4; at < header; at += 4) {
    array.dimensions.push_back(big_endian(bytes.data() + at));
  }
  std::int64_t count = 1;
  for (const std::int64_t dimension : array.dimensions) {
    if (dimension == 0 || count > left / dimension) return std::nullopt;
    count *= dimension;
  }
  if (count != left) return std::nullopt;
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header));
  array.bytes = std::move(bytes);
  return array;
}

bool is_gzip(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char magic[2] = {};
  return std::ifstream(path, std::ios::binary).read(magic, 2) && magic[0] == '\x1f' &&
         magic[1] == '\x8b';
}

// A gzipped file in one go, where nothing is wrong with it.
std::optional<IdxArray> read_whole(const std::string& path) {
  if (!is_gzip(path)) return std::nullopt;
  const auto file = read_file(path);
  if (!file) return std::nullopt;
  auto bytes = gunzip(*file);
  return bytes ? array_of(std::move(*bytes)) : std::nullopt;
}

// Piece by piece, with the words for whatever may be wrong.
Result<IdxArray> read_in_pieces(const std::string& path) {
  errno = 0;
  const GzFile file(gzopen(path.c_str(), "rbe"));
  if (!file) return fail(error_from_errno(errno == 0 ? ENOMEM : errno, "cannot open " + path));
  gzbuffer(file.get(), 1 << 18);

  std::uint8_t magic[4];
  if (!read_exactly(file.get(), magic, 4)) return damaged(path, reason(file.get()));
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 0x08) {
    return damaged(path, "it is not an IDX file of unsigned bytes (it must begin with 00 00 08)");
  }
  IdxArray array;
  std::int64_t count = 1;
  if (magic[3] == 0 || magic[3] > kMostDimensions) {
    return damaged(path, "its header claims " + std::to_string(magic[3]) + " dimensions");
  }
  for (int i = 0; i < magic[3]; ++i) {
    std::uint8_t size[4];
    if (!read_exactly(file.get(), size, 4)) return damaged(path, reason(file.get()));
    const std::int64_t dimension = big_endian(size);
    if (dimension == 0 || count > kMostBytes / dimension) {
      return damaged(path, "its header claims a dimension of " + std::to_string(dimension));
    }
    count *= dimension;
    array.dimensions.push_back(dimension);
  }
  array.bytes.resize(static_cast<std::size_t>(count));
  if (!read_exactly(file.get(), array.bytes.data(), count)) {
    return damaged(path, reason(file.get()) + ", its header promises " + std::to_string(count) +
                             " bytes of data");
  }
  // Reading on to the end makes zlib verify the checksum behind the last byte.
  std::uint8_t extra = 0;
  const int rest = gzread(file.get(), &extra, 1);
  if (rest > 0) return damaged(path, "it is longer than its header says");
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (rest < 0 || (code != Z_OK && code != Z_STREAM_END)) return damaged(path, reason(file.get()));
  return array;
}

}  // namespace

Result<IdxArray> read_idx(const std::string& path) {
  if (auto array = read_whole(path)) return std::move(*array);
  return read_in_pieces(path);
}

Result<IdxArray> read_idx_in(const std::string& folder, const std::string& name) {
  const std::string plain = (std::filesystem::path(folder) / name).string();
  std::error_code ignored;
  if (std::filesystem::exists(plain, ignored)) return read_idx(plain);
  if (std::filesystem::exists(plain + ".gz", ignored)) return read_idx(plain + ".gz");
  return fail(ErrorCode::kNotFound, "there is neither " + name + ".gz nor " + name + " in " +
                                        folder +
                                        "; install Debian's dataset-fashion-mnist, or name the "
                                        "folder that has the four IDX files");
}

}  // namespace ddprun
