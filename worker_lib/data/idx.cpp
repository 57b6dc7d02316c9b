#include "ddprun/idx.h"

#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "worker_lib/process/files.h"

namespace ddprun {
namespace {

// Large enough for every data set of this family, small enough that a damaged header cannot make us
// allocate the machine's memory.
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;
constexpr int kMostDimensions = 8;

tl::unexpected<Error> damaged(const std::string& path, const std::string& what) {
  return fail(ErrorCode::kDataLoss, path + " cannot be used: " + what);
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

bool is_gzip(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char magic[2] = {};
  return std::ifstream(path, std::ios::binary).read(magic, 2) && magic[0] == '\x1f' &&
         magic[1] == '\x8b';
}

// Where the bytes of an array come from: a file, as zlib unpacks it, or memory.
struct Packed {
  bool read(std::uint8_t* to, std::int64_t count) { return read_exactly(file, to, count); }
  std::string why_not() const { return reason(file); }

  gzFile file;
};

struct Unpacked {
  bool read(std::uint8_t* to, std::int64_t count) {
    if (left.size() < static_cast<std::size_t>(count)) return false;
    std::copy_n(left.begin(), count, to);
    left = left.subspan(static_cast<std::size_t>(count));
    return true;
  }
  std::string why_not() const { return "it is cut off"; }

  std::span<const std::uint8_t> left;
};

struct Header {
  std::vector<std::int64_t> dimensions;
  std::int64_t count = 1;  // of bytes behind it
};

template <typename Source>
Result<Header> read_header(const std::string& path, Source& source) {
  std::uint8_t magic[4];
  if (!source.read(magic, 4)) return damaged(path, source.why_not());
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 0x08) {
    return damaged(path, "it is not an IDX file of unsigned bytes (it must begin with 00 00 08)");
  }
  if (magic[3] == 0 || magic[3] > kMostDimensions) {
    return damaged(path, "its header claims " + std::to_string(magic[3]) + " dimensions");
  }
  Header header;
  for (int i = 0; i < magic[3]; ++i) {
    std::uint8_t size[4];
    if (!source.read(size, 4)) return damaged(path, source.why_not());
    const std::int64_t dimension = (std::int64_t{size[0]} << 24) | (std::int64_t{size[1]} << 16) |
                                   (std::int64_t{size[2]} << 8) | std::int64_t{size[3]};
    if (dimension == 0 || header.count > kMostBytes / dimension) {
      return damaged(path, "its header claims a dimension of " + std::to_string(dimension));
    }
    header.count *= dimension;
    header.dimensions.push_back(dimension);
  }
  return header;
}

// A gzipped file in one go, where nothing is wrong with it.
std::optional<IdxArray> read_whole(const std::string& path) {
  if (!is_gzip(path)) return std::nullopt;
  const auto file = read_file(path);
  if (!file) return std::nullopt;
  auto bytes = gunzip(*file);
  if (!bytes) return std::nullopt;
  Unpacked source{*bytes};
  auto header = read_header(path, source);
  if (!header || static_cast<std::int64_t>(source.left.size()) != header->count) {
    return std::nullopt;
  }
  bytes->erase(bytes->begin(), bytes->end() - header->count);
  return IdxArray{std::move(header->dimensions), std::move(*bytes)};
}

// Piece by piece, with the words for whatever may be wrong.
Result<IdxArray> read_in_pieces(const std::string& path) {
  errno = 0;
  const GzFile file(gzopen(path.c_str(), "rbe"));
  if (!file) return fail(error_from_errno(errno == 0 ? ENOMEM : errno, "cannot open " + path));
  gzbuffer(file.get(), 1 << 18);

  Packed source{file.get()};
  auto header = read_header(path, source);
  if (!header) return fail(std::move(header.error()));
  IdxArray array{std::move(header->dimensions), {}};
  array.bytes.resize(static_cast<std::size_t>(header->count));
  if (!source.read(array.bytes.data(), header->count)) {
    return damaged(path, source.why_not() + ", its header promises " +
                             std::to_string(header->count) + " bytes of data");
  }
  // Reading on to the end makes zlib verify the checksum behind the last byte.
  std::uint8_t extra = 0;
  const int rest = gzread(file.get(), &extra, 1);
  if (rest > 0) return damaged(path, "it is longer than its header says");
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (rest < 0 || (code != Z_OK && code != Z_STREAM_END)) return damaged(path, source.why_not());
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
