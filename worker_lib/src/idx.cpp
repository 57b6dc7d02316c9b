#include "ddprun/idx.h"

#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <memory>

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

}  // namespace

Result<IdxArray> read_idx(const std::string& path) {
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
    const std::int64_t dimension = (std::int64_t{size[0]} << 24) | (std::int64_t{size[1]} << 16) |
                                   (std::int64_t{size[2]} << 8) | std::int64_t{size[3]};
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
