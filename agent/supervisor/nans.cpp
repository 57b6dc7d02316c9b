#include "agent/supervisor/nans.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace ddprun::agent {

void Nans::on(const WorkerEvent& event) {
  if (std::holds_alternative<worker_event::Started>(event.what)) {
    lines_ = {};
    sentences_.clear();
    has_stopped_ = false;  // it had no effect if the round was stopped already
  }
  if (const auto* its = std::get_if<worker_event::NotFinite>(&event.what)) on(*its);
}

void Nans::on(const worker_event::NotFinite& reported) {
  const WorkerView& view = workers_.view();
  const std::string& name = reported.value.name;
  const int rank = view.rank_of(reported.local_rank);
  const auto still = [&](int other) {
    const auto progress = view.progress(other - view.round().rank_offset);
    return progress && std::ranges::any_of(progress->values, [&](const NamedValue& value) {
             return value.name == name && !std::isfinite(value.value);
           });
  };
  if (!lines_.is_told(name, rank, reported.step, still)) return;
  const std::string sentence = "rank " + std::to_string(rank) + " reported " + name + " = " +
                               number_text(reported.value.value) + " at step " +
                               std::to_string(reported.step);
  sentences_[name] = sentence;
  parts_.log.warn(sentence);
  events_.write(NanReported{view.round().round, rank, reported.step, reported.value, sentence});
  if (parts_.job.stops_for_nan) end(reported.local_rank, sentence + "; --on-nan=stop");
}

// One worker is enough: the leader stops all others.
void Nans::end(int local_rank, const std::string& sentence) {
  if (has_stopped_ || !workers_.is_to_end_for_nan(local_rank, sentence)) return;
  has_stopped_ = true;
  stop_(WorkerHung{workers_.view().round().round, local_rank});
}

std::string Nans::remark() const {
  std::string text;
  if (has_stopped_) return text;
  for (const auto& [name, sentence] : sentences_) text += "  nan         " + sentence + "\n";
  return text;
}

}  // namespace ddprun::agent
