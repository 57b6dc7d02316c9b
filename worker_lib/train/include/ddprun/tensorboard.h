// SummaryWriter: scalars in TensorBoard's file format (event_record.h), one new file per object. Each
// add_scalar() is one write(2), so that what was added is there after a SIGKILL too (a microsecond or
// two; a power cut may cost the last half minute, as with any file). As in PyTorch's SummaryWriter a
// value is a float: seven digits. Owned by whoever has the numbers, as a rule rank 0's loop; one
// thread.
//
//   ddprun::SummaryWriter writer("runs/first", {.purge_step = step});   // on rank 0
//   writer.add_scalar("loss/train", loss, step);
//   $ tensorboard --logdir runs
//
// A resumed run writes a new file into the same folder, and TensorBoard shows both as one run. Steps
// that the interrupted run had made after its last checkpoint would show twice: `purge_step` makes
// TensorBoard forget them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun {

struct SummaryWriterOptions {
  // The first step that is made again by this run: what earlier files of the folder say about it and
  // later ones is forgotten.
  std::optional<std::int64_t> purge_step = std::nullopt;
};

class SummaryWriter {
 public:
  // Creates the folder, and in it events.out.tfevents.<time>.<host>.<process>.<number>. Throws
  // UsageError when that cannot be written.
  explicit SummaryWriter(const std::string& folder, const SummaryWriterOptions& options = {});
  ~SummaryWriter();
  SummaryWriter(const SummaryWriter&) = delete;
  SummaryWriter& operator=(const SummaryWriter&) = delete;

  // `tag` is its name in TensorBoard, "loss/train" for example: one chart for each, grouped by what
  // stands before the slash. A disk that is full does not end a training: the first write that
  // fails is told in a warning, and nothing is written from then on.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  int fd_ = -1;  // none after a failed write
};

}  // namespace ddprun
