#include "agent/supervisor/gpus.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "agent/core/leader_config.h"
#include "agent/process/process_stacks.h"
#include "agent/process/worker_facts.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kMoment = 1s;              // an answer of a status may be so old
constexpr auto kStatusLimit = 40ms;       // a status may take 100 ms
constexpr auto kFailureLimit = 1s;        // the report of a failure waits for its GPU
constexpr auto kMemoryLimit = 2s;         // a round waits for an answer
constexpr auto kMemoryLookAgain = 100ms;  // the driver does not tell when memory is free
constexpr auto kHangs = 2s;               // an answer that takes longer may never come
constexpr auto kXidWait = 60s;

std::string device_number(const Job& job, int local_rank) {
  constexpr std::string_view kCuda = "cuda:";
  const std::string device = device_of(job, local_rank);
  return device.starts_with(kCuda) ? device.substr(kCuda.size()) : device;
}

// As the kernel numbers the first one, since Linux 3.8.
bool is_first_pid_namespace() {
  std::array<char, 64> text{};
  const ssize_t size = ::readlink("/proc/self/ns/pid", text.data(), text.size());
  return size > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(size)) == "pid:[4026531836]";
}

}  // namespace

// Never unloaded: a thread may hang in it for ever.
struct Gpus::Driver {
  Nvml* nvml = nullptr;
  bool is_tried = false;

  Look look() {
    if (!std::exchange(is_tried, true)) {
      nvml = Nvml::load().release();
      if (nvml != nullptr) nvml->subscribe_to_xids();
    }
    Look look;
    if (nvml == nullptr) return look;
    look.gpus = nvml->samples();
    const std::vector<pid_t> tree = process_tree(::getpid());
    look.own = {tree.begin(), tree.end()};
    look.are_pids_known = are_pids_known(look.gpus, look.own, is_first_pid_namespace());
    look.tells_xids = nvml->tells_xids();
    return look;
  }
};

Gpus::Gpus(const AgentParts& parts, const WorkerView& workers)
    : parts_(parts),
      workers_(workers),
      driver_(std::make_shared<Driver>()),
      calls_(parts.io.get_executor(), "ddprun-gpus"),
      xid_calls_(parts.io.get_executor(), "ddprun-xids"),
      look_again_(parts.io) {
  const std::string device = device_number(parts.job, 0);
  are_used_ = !device.empty() && device != "-1" && device != "NoDevFiles";
}

bool Gpus::are_used() {
  for (int local_rank = 0; !are_used_ && local_rank < workers_.count(); ++local_rank) {
    const pid_t pid = workers_.pid(local_rank);
    are_used_ = pid != 0 && has_gpu(pid);
  }
  return are_used_;
}

void Gpus::on(const WorkerEvent& event) {
  if (const auto* started = std::get_if<worker_event::Started>(&event.what)) {
    wait_.dead = started->pids;
    xids_.clear();
    at_round_.clear();
    is_round_new_ = true;
    if (are_used_) sample(kFailureLimit, [](bool) {});
  } else if (const auto* replaced = std::get_if<worker_event::Replaced>(&event.what)) {
    if (replaced->newcomer != 0) wait_.dead.push_back(replaced->newcomer);
  } else if (const auto* stepped = std::get_if<worker_event::Stepped>(&event.what)) {
    const pid_t pid = workers_.pid(stepped->local_rank);
    if (are_used_ || pid == 0 || !has_gpu(pid)) return;
    are_used_ = true;
    sample(kFailureLimit, [](bool) {});
  }
}

// ---- asking

// Each gets the answer to a question that was asked after its call.
void Gpus::sample(std::chrono::milliseconds limit, std::function<void(bool)> done) {
  if (!trouble().empty()) return done(false);
  const auto waiter = std::make_shared<Waiter>(parts_.io);
  waiter->done = std::move(done);
  waiters_.push_back(waiter);
  waiter->limit.arm(limit, [this, its = std::weak_ptr(waiter)] {
    const auto late = its.lock();
    std::erase(waiters_, late);
    late->done(false);
  });
  if (!asked_at_) ask();
}

void Gpus::ask() {
  asked_at_ = Clock::now();
  for (const auto& each : waiters_) each->is_asked = true;
  calls_.run<Look>([driver = driver_] { return driver->look(); },
                   [this](Look look) {
                     asked_at_.reset();
                     take(std::move(look));
                     const auto answered = std::ranges::stable_partition(
                         waiters_, [](const auto& each) { return !each->is_asked; });
                     const std::vector<std::shared_ptr<Waiter>> now(answered.begin(),
                                                                    answered.end());
                     waiters_.erase(answered.begin(), answered.end());
                     if (!waiters_.empty()) ask();
                     for (const auto& each : now) {
                       each->limit.cancel();
                       each->done(true);
                     }
                   });
}

void Gpus::take(Look look) {
  last_ = std::move(look);
  last_at_ = Clock::now();
  if (std::exchange(is_round_new_, false)) at_round_ = last_.gpus;
  place_ranks();
  if (last_.tells_xids && !std::exchange(has_watched_, true)) await_xid();
}

void Gpus::place_ranks() {
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank) {
    const pid_t pid = workers_.pid(local_rank);
    if (pid == 0) continue;
    const auto gpu = gpu_of({pid, device_number(parts_.job, local_rank), local_rank}, last_.gpus);
    if (gpu) gpu_of_rank_[local_rank] = *gpu;
  }
}

void Gpus::await_xid() {
  using XidAnswer = std::pair<std::optional<GpuXid>, bool>;
  xid_calls_.run<XidAnswer>(
      [nvml = driver_->nvml]() -> XidAnswer {
        const auto xid = nvml->await_xid(kXidWait);
        return {xid, nvml->tells_xids()};
      },
      [this](const XidAnswer& answer) {
        if (answer.first) note(*answer.first);
        if (answer.second) await_xid();
      });
}

void Gpus::note(const GpuXid& xid) {
  constexpr std::size_t kXidsKept = 256;
  if (std::ranges::count(xids_, xid) == 0) {
    parts_.log.warn(xid_in_words(xid.xid) + " on GPU " + std::to_string(xid.gpu));
    if (xids_.size() < kXidsKept) xids_.push_back(xid);
  }
}

std::vector<int> Gpus::xids_of(int gpu) const {
  std::vector<int> xids;
  for (const GpuXid& each : xids_) {
    if (each.gpu == gpu) xids.push_back(each.xid);
  }
  return xids;
}

std::optional<std::uint64_t> Gpus::ecc_of(int gpu) const {
  const auto i = static_cast<std::size_t>(gpu);
  if (i >= last_.gpus.size() || i >= at_round_.size()) return std::nullopt;
  const auto& now = last_.gpus[i].ecc;
  const auto& then = at_round_[i].ecc;
  if (!now || !then) return std::nullopt;
  return *now > *then ? *now - *then : 0;
}

std::string Gpus::trouble() const {
  if (!asked_at_ || Clock::now() - *asked_at_ < kHangs) return "";
  return "NVML has not answered for " +
         duration_text(
             std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *asked_at_)) +
         ", as when a GPU has fallen off the bus";
}

// ---- status

void Gpus::refresh(std::function<void()> done) {
  if (!are_used() || (last_at_ && Clock::now() - *last_at_ < kMoment)) return done();
  sample(kStatusLimit, [done = std::move(done)](bool) { done(); });
}

void Gpus::fill(NodeStatus& status) const {
  if (!are_used_) return;
  status.gpu_trouble = trouble();
  if (!last_at_) return;
  status.gpus_age = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - *last_at_);
  for (std::size_t i = 0; i < last_.gpus.size(); ++i) {
    const GpuSample& its = last_.gpus[i];
    GpuStatus gpu{static_cast<int>(i), its.gpu.uuid, its.gpu.pci_address, {}};
    for (const auto& [local_rank, index] : gpu_of_rank_) {
      if (index == gpu.index) gpu.ranks.push_back(workers_.rank_of(local_rank));
    }
    gpu.memory_used = its.memory_used;
    gpu.memory_total = its.memory_total;
    gpu.utilization = its.utilization;
    gpu.temperature = its.temperature;
    gpu.ecc = ecc_of(gpu.index);
    gpu.xids = xids_of(gpu.index);
    gpu.trouble = its.trouble;
    status.gpus.push_back(std::move(gpu));
  }
}

// ---- a worker has failed

void Gpus::explain(rdzv::WorkerFailure failure, std::function<void(rdzv::WorkerFailure)> done) {
  const auto& tail = failure.stderr_tail;
  are_used_ = are_used_ || speaks_of_cuda(failure.message) ||
              std::ranges::any_of(tail, [](const auto& line) { return speaks_of_cuda(line); });
  if (!are_used_) return done(std::move(failure));
  sample(kFailureLimit, [this, failure = std::move(failure),
                         done = std::move(done)](bool is_fresh) mutable {
    const std::vector<std::string> lines = lines_for(failure, is_fresh);
    if (!lines.empty()) {
      const std::string text = joined(lines, "\n");
      parts_.log.warn("rank " + std::to_string(failure.rank) + " failed: " + joined(lines, "; "));
      failure.message = failure.message.empty() ? text : text + "\n" + failure.message;
    }
    done(std::move(failure));
  });
}

std::vector<std::string> Gpus::lines_for(const rdzv::WorkerFailure& failure, bool is_fresh) const {
  const auto found = gpu_of_rank_.find(failure.local_rank);
  GpuFailure facts;
  facts.host = parts_.host;
  facts.gpu =
      found != gpu_of_rank_.end()
          ? found->second
          : gpu_of({failure.pid, device_number(parts_.job, failure.local_rank), failure.local_rank},
                   last_.gpus)
                .value_or(-1);
  facts.xids = xids_of(facts.gpu);
  std::vector<std::string> lines;
  if (is_fresh && facts.gpu >= 0 && static_cast<std::size_t>(facts.gpu) < last_.gpus.size()) {
    facts.ecc = ecc_of(facts.gpu).value_or(0);
    facts.sample = last_.gpus[static_cast<std::size_t>(facts.gpu)];
    const auto& tail = failure.stderr_tail;
    facts.is_out_of_memory =
        says_out_of_memory(failure.message) ||
        std::ranges::any_of(tail, [](const auto& line) { return says_out_of_memory(line); });
    std::erase_if(facts.sample.processes,
                  [&](const GpuProcess& each) { return each.pid == failure.pid; });
    facts.own = last_.own;
    facts.are_pids_known = last_.are_pids_known;
  }
  lines = in_words(facts);
  if (!is_fresh) {
    lines.push_back("the GPUs of " + parts_.host + " say nothing: " +
                    (trouble().empty()
                         ? "NVML has not answered within " + duration_text(kFailureLimit)
                         : trouble()));
  }
  return lines;
}

// ---- before a round

void Gpus::await_memory(std::function<void()> done) {
  look_again_.cancel();
  start_ = std::move(done);
  waits_since_ = Clock::now();
  has_told_wait_ = false;
  wait_.last.reset();
  if (wait_.dead.empty()) {  // it is the first round here
    if (are_used_) {
      sample(kMemoryLimit, [this](bool is_fresh) {
        if (is_fresh) wait_.before_first = last_.gpus;
      });
    }
    return std::exchange(start_, nullptr)();
  }
  if (!are_used_) return std::exchange(start_, nullptr)();
  wait_.gpus.clear();
  for (const auto& [local_rank, gpu] : gpu_of_rank_) wait_.gpus.push_back(gpu);
  look_for_memory();
}

void Gpus::look_for_memory() {
  sample(kMemoryLimit, [this](bool is_fresh) {
    if (!start_) return;
    if (!is_fresh) {
      return memory_is_awaited_no_more(
          "the GPU memory of the workers that have ended is not awaited: NVML does not answer");
    }
    const std::string awaited = what_is_awaited(wait_, last_.gpus, last_.are_pids_known);
    const auto waited = Clock::now() - waits_since_;
    const std::string time =
        duration_text(std::chrono::duration_cast<std::chrono::seconds>(waited));
    if (awaited.empty()) {
      return memory_is_awaited_no_more(
          has_told_wait_ ? "the GPU memory is free after " + time + "; the workers start" : "");
    }
    if (waited >= MemoryWait::kWaitMax) {
      return memory_is_awaited_no_more("after " + time + " the workers start although " + awaited +
                                       " is still in use");
    }
    if (waited >= MemoryWait::kTellAfter && !std::exchange(has_told_wait_, true)) {
      parts_.log.warn("the next round waits for the GPU memory of workers that have ended: " +
                      awaited);
    }
    wait_.last = last_.gpus;
    look_again_.arm(kMemoryLookAgain, [this] { look_for_memory(); });
  });
}

void Gpus::memory_is_awaited_no_more(const std::string& sentence) {
  if (!sentence.empty()) parts_.log.warn(sentence);
  std::exchange(start_, nullptr)();
}

}  // namespace ddprun::agent
