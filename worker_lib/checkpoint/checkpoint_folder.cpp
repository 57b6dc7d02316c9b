#include "worker_lib/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "ddprun/error.h"
#include "worker_lib/checkpoint/safetensors.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kLatest = "latest.safetensors";
constexpr std::string_view kBest = "best.safetensors";

bool is_checkpoint_name(const std::string& name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end() - kSuffix.size(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::int64_t step_of(const std::string& path) {
  const std::string name = fs::path(path).filename();
  return std::strtoll(name.c_str() + kPrefix.size(), nullptr, 10);
}

// Its head. Throws Failure, kDataLoss, for one that is not whole.
std::string check_whole(const FileReader& file) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  std::string head = file.read(0, 8);
  head = file.read(0, safetensors::head_size(head, file.size()));
  const auto known = safetensors::read_head(head, file.size());
  if (!known.checksum) return head;
  std::uint32_t crc = known.crc;
  std::string piece(std::min<std::uint64_t>(kPiece, file.size() - known.size), '\0');
  for (std::uint64_t at = known.size; at < file.size();) {
    const std::size_t got = file.read(at, piece.data(), piece.size());
    if (got == 0) break;
    crc = safetensors::continue_crc(crc, std::string_view(piece).substr(0, got));
    at += got;
  }
  safetensors::check_crc(known, crc);
  return head;
}

// What a crash may have left of ours.
bool is_unfinished(const std::string& name) {
  return name.ends_with(kUnfinishedSuffix) &&
         (name.starts_with(kPrefix) || name.starts_with(kLatest) || name.starts_with(kBest));
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path, int keep_last)
    : path_(std::move(path)), keep_last_(keep_last) {
  assert(keep_last >= 1);
}

void CheckpointFolder::prepare() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    throw UsageError("the checkpoint folder " + path_ + " cannot be created: " + error.message());
  }
  if (!fs::is_directory(path_, error)) {
    throw UsageError("the checkpoint folder " + path_ + " is not a folder");
  }
  if (::access(path_.c_str(), W_OK | X_OK) != 0) {
    throw UsageError(
        error_from_errno(errno, "the checkpoint folder " + path_ + " cannot be written"));
  }
  finish_best();
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    if (is_unfinished(entry.path().filename().string())) {
      std::error_code ignored;
      fs::remove(entry.path(), ignored);
    }
  }
}

CheckpointFolder::Warnings CheckpointFolder::write(std::int64_t step,
                                                   const std::vector<std::string_view>& pieces,
                                                   bool is_best) {
  char name[64];
  std::snprintf(name, sizeof name, "step-%012lld.safetensors", static_cast<long long>(step));
  const std::string written = place_of(name);
  Warnings warnings;
  if (is_best) announce_best(name);
  try {
    write_file_atomically(written, pieces);
  } catch (...) {
    std::error_code ignored;
    fs::remove(announced_best(), ignored);
    throw;
  }
  link(kLatest, written, warnings);
  if (is_best) link(kBest, written, warnings);

  std::error_code ignored;
  const fs::path latest = fs::read_symlink(place_of(kLatest), ignored);
  const fs::path best = fs::read_symlink(place_of(kBest), ignored);
  const auto paths = newest_first();
  for (std::size_t i = static_cast<std::size_t>(keep_last_); i < paths.size(); ++i) {
    const std::string& path = paths[i];
    const fs::path file = fs::path(path).filename();
    // The one just written is not among the last if another training left its files here, and
    // `latest` names another one if the disk had no place for a link.
    if (path == written || file == latest || file == best) continue;
    fs::remove(path, ignored);
  }
  return warnings;
}

CheckpointFolder::Search CheckpointFolder::newest_whole() {
  Search search;
  std::vector<std::string> damaged;
  std::string reasons;
  for (const std::string& path : newest_first()) {
    FileReader file(path);
    try {
      std::string head = check_whole(file);
      search.found = Found{path, step_of(path), std::move(file), std::move(head)};
      break;
    } catch (const Failure& failure) {
      const std::string& why = failure.error().message;
      damaged.push_back(path);
      reasons += (reasons.empty() ? "" : "; ") + path + ": " + why;
      search.warnings.push_back("the checkpoint " + path + " is damaged (" + why +
                                "): set aside as .damaged, going on with the one before it");
    }
  }
  if (!search.found && !damaged.empty()) {
    // They stay where they are: a restarted group must not take their absence for a fresh start.
    throw Failure(ErrorCode::kDataLoss,
                  "no checkpoint in " + path_ + " is whole (" + reasons +
                      "); remove them, or name another folder, to train from the beginning");
  }
  for (const std::string& path : damaged) {
    std::error_code ignored;
    fs::rename(path, path + ".damaged", ignored);
  }
  if (search.found) link(kLatest, search.found->path, search.warnings);
  if (std::error_code ignored; !has_best() && fs::is_symlink(place_of(kBest), ignored)) {
    fs::remove(place_of(kBest), ignored);  // it named one that was set aside
  }
  return search;
}

std::optional<std::int64_t> CheckpointFolder::newest_step() const {
  const auto paths = newest_first();
  return paths.empty() ? std::nullopt : std::optional(step_of(paths.front()));
}

bool CheckpointFolder::has_best() const {
  std::error_code ignored;
  return fs::exists(place_of(kBest), ignored);
}

std::string CheckpointFolder::announced_best() const {
  return place_of(kBest) + std::string(kUnfinishedSuffix);
}

void CheckpointFolder::announce_best(const std::string& name) {
  std::error_code ignored;  // then it is not known after a crash
  fs::remove(announced_best(), ignored);
  fs::create_symlink(name, announced_best(), ignored);
}

CheckpointFolder::Warnings CheckpointFolder::finish_best() {
  Warnings warnings;
  std::error_code error;
  const std::string name = fs::read_symlink(announced_best(), error);
  if (!error && is_checkpoint_name(name) && fs::exists(place_of(name), error)) {
    link(kBest, place_of(name), warnings);
  }
  return warnings;
}

std::string CheckpointFolder::place_of(std::string_view name) const {
  return (fs::path(path_) / name).string();
}

// Relative, so that the folder can be moved.
void CheckpointFolder::link(std::string_view name, const std::string& path, Warnings& warnings) {
  try {
    link_atomically(place_of(name), fs::path(path).filename().string());
  } catch (const Failure& failure) {
    if (std::exchange(has_told_of_links_, true)) return;
    warnings.push_back(
        failure.error().message +
        ": the checkpoints go without such names, and a best one is not kept longer than others");
  }
}

std::vector<std::string> CheckpointFolder::newest_first() const {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(path_, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    if (is_checkpoint_name(at->path().filename().string())) names.push_back(at->path());
  }
  if (error) {
    throw Failure(error_from_errno(error.value(), "cannot list the checkpoint folder " + path_));
  }
  // Twelve digits: the order of the names is that of the steps.
  std::sort(names.rbegin(), names.rend());
  return names;
}

}  // namespace ddprun
