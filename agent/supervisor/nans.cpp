#include "agent/supervisor/nans.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <variant>

#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {

void Nans::on(const WorkerEvent& event) {
  if (std::holds_alternative<worker_event::Started>(event.what)) {
    lines_ = {};
    told_.clear();
    has_stopped_ = false;  // it had no effect if the round was stopped already
  }
  if (const auto* its = std::get_if<worker_event::NotFinite>(&event.what)) on(*its);
  if (const auto* its = std::get_if<worker_event::Ending>(&event.what)) on(*its);
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
  const auto left_out =
      lines_.line(name, rank, reported.step, std::chrono::steady_clock::now(), still);
  const std::string sentence = "rank " + std::to_string(rank) + " reported " + name + " = " +
                               number_text(reported.value.value) + " at step " +
                               std::to_string(reported.step);
  if (left_out) {
    told_[name] = {rank, sentence};
    const std::string line = *left_out == 0
                                 ? sentence
                                 : sentence + ", after " + counted(*left_out, "more such report") +
                                       " since the last line";
    parts_.log.warn(line);
    events_.write(NanReported{view.round().round, rank, reported.step, reported.value, line});
  }
  if (parts_.job.stops_for_nan) end(reported.local_rank, sentence + "; --on-nan=stop");
}

// Its page is there for the last time.
void Nans::on(const worker_event::Ending& ending) {
  const WorkerView& view = workers_.view();
  const auto progress = view.progress(ending.local_rank);
  if (!progress) return;
  for (const NamedValue& value : progress->values) {
    const auto its = told_.find(value.name);
    if (its == told_.end() || its->second.rank != view.rank_of(ending.local_rank)) continue;
    its->second.is_finite_again = std::isfinite(value.value);
  }
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
  for (const auto& [name, its] : told_) {
    text += "  nan         " + its.sentence +
            (its.is_finite_again ? ", and it is finite again since" : "") + "\n";
  }
  return text;
}

}  // namespace ddprun::agent
