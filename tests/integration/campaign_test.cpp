// Hundreds of faults in jobs of every kind: one node, static, c10d, `ddpctl leader`, etcd. Workers,
// agents, keepers and leaders are killed, crash, are told to stop, or are paused, at any moment,
// also while the job recovers from the last fault. An agent that ends with an error is started
// again with the same command line, as by a service manager. Every job must run again within a time
// limit, succeed with the weights of an undisturbed training, and leave nothing behind.
//
// Each job has a seed, which a failure message shows; DDPRUN_CAMPAIGN_SEED=<that seed> begins with
// it: the same faults in the same order, at nearly the same moments. DDPRUN_TEST_FULL=1 runs 500
// faults; DDPRUN_CAMPAIGN_JOBS=N runs N jobs.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/random.h"
#include "tests/support/cluster.h"
#include "tests/support/etcd_server.h"
#include "tests/support/integer_training.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using sim::Random;

constexpr int kFaultsOfAJob = 5;
constexpr int kJobsAtATime = 3;
// Two seconds: shorter than many a SIGSTOP lasts, so that agents are found silent.
constexpr const char* kConf = "keep_alive_interval=1,keep_alive_max_attempt=2";
constexpr const char* kLease = "lease_time=2";
// Pauses after losses in a row may take 8 s; all the rest is for loaded machines.
constexpr seconds kLongestSilence{60};  // without a step, and without an event
constexpr seconds kLongestJob{300};
// Before the end every node is there, if only as a spare: one that comes later finds nobody.
constexpr milliseconds kCalm{1000};
constexpr milliseconds kFeltLater{100};  // a fault stops the steps within this time

// ---- what may happen

enum class Target { kWorker, kAgent, kKeeper, kLeader };

std::ostream& operator<<(std::ostream& out, Target target) {
  return out << std::array{"worker", "agent", "keeper", "leader"}[static_cast<std::size_t>(target)];
}

std::string name_of(int signal) { return std::string("SIG") + sigabbrev_np(signal); }

// One line of the table.
struct Kind {
  Meeting meeting = Meeting::kOneNode;
  Target target = Target::kWorker;
  int signal = 0;
  auto operator<=>(const Kind&) const = default;
};

struct Fault {
  Kind kind;
  bool waits_for_job = false;  // to run again after the fault before
  milliseconds after{};        // that, or the fault before
  unsigned pick = 0;           // among those whom it may hit
  milliseconds stops_for{};    // SIGSTOP
};

constexpr std::array kMeetings{Meeting::kOneNode, Meeting::kC10d, Meeting::kStatic,
                               Meeting::kLeader, Meeting::kEtcd};

std::vector<Kind> kinds_of(Meeting meeting) {
  std::vector<Kind> kinds;
  for (const Target target : {Target::kWorker, Target::kAgent, Target::kKeeper, Target::kLeader}) {
    if (meeting == Meeting::kOneNode && target == Target::kLeader) continue;
    // A keeper blocks all of them but SIGKILL and SIGSTOP: then nothing may happen.
    for (const int signal : {SIGKILL, SIGSTOP, SIGSEGV, SIGABRT, SIGTERM}) {
      kinds.push_back({meeting, target, signal});
    }
  }
  return kinds;
}

// So that a few jobs with successive seeds have every kind of fault, in another order each time.
std::vector<Kind> kinds_of(Meeting meeting, unsigned turn) {
  std::vector<Kind> deck = kinds_of(meeting);
  const auto hands = static_cast<unsigned>(deck.size()) / kFaultsOfAJob;
  Random random(turn / hands * kMeetings.size() + static_cast<unsigned>(meeting));
  for (std::size_t i = deck.size() - 1; i > 0; --i) {
    std::swap(deck[i], deck[static_cast<std::size_t>(random.number(0, static_cast<int>(i)))]);
  }
  const auto first = deck.begin() + (turn % hands) * kFaultsOfAJob;
  return {first, first + kFaultsOfAJob};
}

milliseconds up_to(Random& random, int least, int most) {
  return milliseconds(random.number(least, most));
}

std::deque<Fault> draw_faults(Random& random, Meeting meeting, unsigned turn) {
  std::deque<Fault> faults;
  for (const Kind& kind : kinds_of(meeting, turn)) {
    Fault fault{.kind = kind, .pick = static_cast<unsigned>(random.number(0, 999))};
    const int when = random.number(1, 10);
    fault.waits_for_job = when > 6;
    fault.after = when <= 4   ? up_to(random, 0, 200)
                  : when <= 6 ? up_to(random, 200, 1500)
                              : up_to(random, 0, 500);
    const int how_long = random.number(1, 10);
    const milliseconds stop = how_long <= 5   ? up_to(random, 500, 2000)
                              : how_long <= 8 ? up_to(random, 2000, 5000)
                                              : up_to(random, 5000, 10'000);
    if (kind.signal == SIGSTOP) fault.stops_for = stop;
    faults.push_back(fault);
  }
  return faults;
}

// ---- what has happened, in all jobs

class Records {
 public:
  void add_job(Meeting meeting) {
    const std::lock_guard lock(mutex_);
    ++jobs_[meeting];
  }
  void add_fault(const Kind& kind) {
    const std::lock_guard lock(mutex_);
    ++lines_[kind].count;
  }
  void add_standstill(const Kind& kind, milliseconds time) {
    const std::lock_guard lock(mutex_);
    lines_[kind].longest = std::max(lines_[kind].longest, time);
  }
  void add_end(Ended ended) {
    const std::lock_guard lock(mutex_);
    ++ends_[::testing::PrintToString(ended)];
  }
  int faults() const {
    int sum = 0;
    for (const auto& [kind, line] : lines_) sum += line.count;
    return sum;
  }

  void print(std::ostream& out) const {
    out << "backend   target   signal    faults   longest time without a new step, ms\n";
    for (const auto& [kind, line] : lines_) {
      std::ostringstream backend;
      std::ostringstream target;
      backend << kind.meeting;
      target << kind.target;
      out << std::left << std::setw(10) << backend.str() << std::setw(9) << target.str()
          << std::setw(10) << name_of(kind.signal) << std::right << std::setw(6) << line.count
          << std::setw(9) << line.longest.count() << "\n";
    }
    out << faults() << " faults; jobs:";
    for (const auto& [meeting, count] : jobs_) out << " " << meeting << " " << count;
    out << "; agents and leaders that ended and were started again:";
    for (const auto& [end, count] : ends_) out << " " << count << " × " << end << ";";
    out << "\n";
  }

 private:
  struct Line {
    int count = 0;
    milliseconds longest{};
  };
  std::mutex mutex_;
  std::map<Kind, Line> lines_;
  std::map<Meeting, int> jobs_;
  std::map<std::string, int> ends_;
};

// ---- what is trained

class Training {
 public:
  virtual ~Training() = default;
  virtual Command program() const = 0;
  virtual int last_step() = 0;  // that is known to be done; -1: none
  virtual int ranks() = 0;      // that did it
  // False: it is so near to its end that no fault may come any more.
  virtual bool has_time() { return true; }
  // True: it trains until it is told to finish.
  virtual bool is_told_to_finish() const { return false; }
  virtual std::string difference() const = 0;  // to an undisturbed one; empty: there is none

  std::string folder() const { return folder_.path(); }

 protected:
  TemporaryTree folder_;
};

class TrainingOfIntegers : public Training {
 public:
  Command program() const override { return {DDPRUN_INTEGER_TRAINING, folder()}; }
  int last_step() override {
    read_progress();
    return last_step_;
  }
  int ranks() override { return ranks_; }
  bool is_told_to_finish() const override { return true; }

  std::string difference() const override {
    const int last = last_checkpoint_in(folder());
    const std::string its = "its last checkpoint, of step " + std::to_string(last) + ", ";
    if (last < last_step_) return its + "is too old";
    const auto saved = read_checkpoint(folder(), last);
    if (!saved) return its + "is damaged";
    return *saved == IntegerTraining::after(last) ? "" : its + "has other weights";
  }

 private:
  void read_progress() {
    std::ifstream file(folder() + "/progress");
    file.seekg(static_cast<std::streamoff>(read_));
    for (std::string line; std::getline(file, line) && !file.eof();) {
      read_ += line.size() + 1;
      int round = 0;
      int step = 0;
      std::istringstream(line) >> round >> ranks_ >> step;
      last_step_ = std::max(last_step_, step);
    }
  }

  std::size_t read_ = 0;
  int last_step_ = -1;
  int ranks_ = 0;
};

// ---- one job

struct JobPlan {
  unsigned seed = 0;
  Meeting meeting = Meeting::kOneNode;
  std::string nnodes = "1";
  int nodes = 1;
  int nproc = 1;
  int ranks = 1;  // when all nodes are there
  std::deque<Fault> faults;
};

class DisturbedJob {
 public:
  DisturbedJob(JobPlan plan, std::unique_ptr<Training> training, const EtcdServers* etcd,
               Records& records)
      : plan_(std::move(plan)),
        training_(std::move(training)),
        etcd_(etcd),
        records_(records),
        cluster_(setup()) {}

  // What went wrong; empty: nothing.
  std::string run();

 private:
  // An agent, or `ddpctl leader`, as a service manager has it.
  struct Service {
    int node = 0;  // kLeaderService: no agent
    Random delays;
    std::optional<Clock::time_point> start_at{};
    bool has_ended_well = false;
    bool is_running() const { return !start_at && !has_ended_well; }
  };
  static constexpr int kLeaderService = -1;
  static constexpr int kNobody = -2;

  struct Victim {
    pid_t pid = 0;
    std::string name;
    int node = 0;
  };
  struct Struck {
    Kind kind;
    Clock::time_point at;
  };
  struct Stopped {
    Victim victim;
    Clock::time_point until;
  };

  ClusterSetup setup() const;
  std::string etcd_prefix() const { return "/campaign" + std::to_string(plan_.seed); }

  Job& job_of(const Service& service) {
    return service.node == kLeaderService ? cluster_.leader() : cluster_[service.node];
  }
  std::string name_of_service(int node) const {
    return node == kLeaderService ? "ddpctl leader" : "node " + std::to_string(node);
  }
  void start(Service& service);
  void tend(Service& service);
  void observe();
  void strike_when_due();
  void strike(const Fault& fault, const Victim& victim);
  std::vector<Victim> candidates(Target target);
  int leading_service();
  void let_go_on();
  void finish_when_calm();
  bool all_have_ended() const {
    return std::ranges::all_of(services_, [](const Service& each) { return each.has_ended_well; });
  }
  void check_for_a_hang();
  void check_the_end();
  std::string status_of(const Service& service);
  std::string all_that_is_known();

  void note(const std::string& what) {
    last_event_ = Clock::now();
    news_since_event_ = 0;
    const auto at = std::chrono::duration_cast<milliseconds>(last_event_ - began_);
    history_ += std::to_string(at.count()) + " ms: " + what + "\n";
  }
  void wrong(const std::string& what) {
    note(what);
    if (wrong_.empty()) wrong_ = what;
  }

  JobPlan plan_;
  std::unique_ptr<Training> training_;
  const EtcdServers* etcd_;
  Records& records_;
  TemporaryTree temporary_;
  TemporaryTree control_;
  Cluster cluster_;
  std::vector<Service> services_;

  const Clock::time_point began_ = Clock::now();
  Clock::time_point last_event_ = began_;
  std::string history_;
  std::string wrong_;
  int step_ = -1;
  Clock::time_point step_at_ = began_;
  int news_since_event_ = 0;  // of steps
  std::vector<Struck> struck_;
  std::optional<Clock::time_point> next_strike_;
  std::vector<Stopped> stopped_;
  int etcd_leader_ = kNobody;
  Clock::time_point leader_asked_for_{};
  std::set<pid_t> crashed_;              // agents; they leave their sockets
  bool crashed_without_keeper_ = false;  // then nobody removes files
  bool finishes_ = false;
};

ClusterSetup DisturbedJob::setup() const {
  ClusterSetup setup{.meeting = plan_.meeting,
                     .nnodes = plan_.nnodes,
                     .nproc = plan_.nproc,
                     .options = {"--max-restarts=1000"},
                     .conf = kConf};
  // Without a debugger: the stacks of workers that have to be killed are another test's.
  setup.environment = {{"TMPDIR", temporary_.path()},
                       {"DDPRUN_CONTROL_DIR", control_.path()},
                       {"OMP_NUM_THREADS", "1"},
                       {"PATH", "/none"}};
  // Agents that get SIGSEGV die of it, with a sanitizer too.
  for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* options = std::getenv(name);
    setup.environment[name] = std::string(options == nullptr ? "" : options) + ":handle_segv=0";
  }
  setup.program = training_->program();
  if (plan_.meeting == Meeting::kOneNode) setup.conf = "";
  if (plan_.meeting == Meeting::kEtcd) {
    setup.etcd = etcd_->endpoints();
    setup.conf += std::string(",") + kLease + ",etcd_prefix=" + etcd_prefix();
  }
  return setup;
}

void DisturbedJob::start(Service& service) {
  service.start_at.reset();
  if (service.node == kLeaderService) {
    cluster_.start_leader();
  } else {
    // `ddpctl leader` says nothing of how workers are stopped.
    cluster_.start(service.node, {"--shutdown-timeout=1"});
  }
  note(name_of_service(service.node) + " is started (pid " + std::to_string(job_of(service).pid()) +
       ")");
}

void DisturbedJob::tend(Service& service) {
  if (service.has_ended_well) return;
  if (service.start_at) {
    if (Clock::now() >= *service.start_at) start(service);
    return;
  }
  const Ended ended = job_of(service).wait(0ms);
  if (ended == Ended{}) return;
  const std::string who = name_of_service(service.node);
  if (ended == exited(0)) {
    if (training_->is_told_to_finish() && !finishes_) wrong(who + " ends before it may");
    service.has_ended_well = true;
    return note(who + " has ended well");
  }
  records_.add_end(ended);
  // Killed, told to stop, or what becomes of a node without a leader or without enough others.
  const bool is_retried =
      ended.signal ||
      (ended.code &&
       std::set{kRendezvousTimeout, kLeaderLost, kBelowMinimum, 128 + SIGTERM}.contains(
           *ended.code));
  if (!is_retried || finishes_) wrong(who + " ends with " + ::testing::PrintToString(ended));
  if (ended.signal) crashed_.insert(job_of(service).pid());
  constexpr std::array kDelays{0ms, 50ms, 150ms, 300ms, 1000ms};
  const auto delay = kDelays[static_cast<std::size_t>(service.delays.number(0, 4))];
  service.start_at = Clock::now() + delay;
  note(who + ": " + ::testing::PrintToString(ended) + "; it is started again in " +
       std::to_string(delay.count()) + " ms");
}

void DisturbedJob::observe() {
  const int step = training_->last_step();
  if (step <= step_) return;
  const auto now = Clock::now();
  // Of faults in a row the first one is the cause; its effect may begin a moment later.
  // A keeper's death alone stops nothing.
  const auto cause = std::ranges::find_if(struck_, [&](const Struck& each) {
    return each.kind.target != Target::kKeeper && each.at + kFeltLater >= step_at_;
  });
  if (!struck_.empty()) {
    const Struck& blamed = cause == struck_.end() ? struck_.back() : *cause;
    records_.add_standstill(
        blamed.kind, std::chrono::duration_cast<milliseconds>(now - std::max(blamed.at, step_at_)));
  }
  ++news_since_event_;
  step_ = step;
  step_at_ = now;
}

int DisturbedJob::leading_service() {
  if (plan_.meeting == Meeting::kLeader) return kLeaderService;
  if (plan_.meeting != Meeting::kEtcd) return 0;
  // Asking costs a process.
  if (Clock::now() - leader_asked_for_ > 100ms) {
    etcd_leader_ = std::max(leading_node(cluster_, *etcd_, etcd_prefix()), -1);
    if (etcd_leader_ < 0) etcd_leader_ = kNobody;
    leader_asked_for_ = Clock::now();
  }
  return etcd_leader_;
}

std::vector<DisturbedJob::Victim> DisturbedJob::candidates(Target target) {
  std::vector<Victim> found;
  const bool one_leads =
      plan_.meeting != Meeting::kOneNode && (target == Target::kLeader || target == Target::kAgent);
  const int leader = one_leads ? leading_service() : kNobody;
  for (const Service& service : services_) {
    if (!service.is_running()) continue;
    const Job& job = job_of(service);
    const std::string name = name_of_service(service.node);
    const bool leads = service.node == leader;
    switch (target) {
      case Target::kLeader:
        if (leads) found.push_back({job.pid(), "the leader, " + name, service.node});
        break;
      case Target::kAgent:
        if (!leads && service.node != kLeaderService) {
          found.push_back({job.pid(), "the agent of " + name, service.node});
        }
        break;
      case Target::kKeeper:
        if (const auto pid = job.keeper()) {
          found.push_back({*pid, "the keeper of " + name, service.node});
        }
        break;
      case Target::kWorker:
        for (const auto& [rank, pid] : job.workers()) {
          found.push_back({pid, "rank " + std::to_string(rank) + " on " + name, service.node});
        }
        break;
    }
  }
  return found;
}

void DisturbedJob::strike_when_due() {
  if (plan_.faults.empty()) return;
  if (!training_->has_time()) {
    note("the end is near; faults that are left out: " + std::to_string(plan_.faults.size()));
    return plan_.faults.clear();
  }
  const Fault fault = plan_.faults.front();
  const auto now = Clock::now();
  if (!next_strike_) {
    if (fault.waits_for_job && news_since_event_ < 3) return;
    next_strike_ = now + fault.after;
  }
  if (now < *next_strike_) return;
  const auto victims = candidates(fault.kind.target);
  if (victims.empty()) return;  // not yet
  strike(fault, victims[fault.pick % victims.size()]);
  plan_.faults.pop_front();
  next_strike_.reset();
}

void DisturbedJob::strike(const Fault& fault, const Victim& victim) {
  const bool is_agent = fault.kind.target == Target::kAgent ||
                        (fault.kind.target == Target::kLeader && victim.node != kLeaderService);
  const bool crashes = fault.kind.signal != SIGTERM && fault.kind.signal != SIGSTOP;
  if (is_agent && crashes && !cluster_[victim.node].keeper()) crashed_without_keeper_ = true;
  if (kill(victim.pid, fault.kind.signal) != 0) return;  // it has just ended
  note(name_of(fault.kind.signal) + " to " + victim.name + " (pid " + std::to_string(victim.pid) +
       "), after step " + std::to_string(step_) +
       (fault.kind.signal == SIGSTOP ? ", for " + std::to_string(fault.stops_for.count()) + " ms"
                                     : ""));
  struck_.push_back({fault.kind, last_event_});
  records_.add_fault(fault.kind);
  if (fault.kind.signal == SIGSTOP) stopped_.push_back({victim, last_event_ + fault.stops_for});
}

void DisturbedJob::let_go_on() {
  std::erase_if(stopped_, [this](const Stopped& stopped) {
    if (Clock::now() < stopped.until) return false;
    const auto info = process(stopped.victim.pid);
    if (info && info->state == 'T') {
      kill(stopped.victim.pid, SIGCONT);
      note("SIGCONT to " + stopped.victim.name);
    }
    return true;
  });
}

void DisturbedJob::finish_when_calm() {
  if (finishes_ || !training_->is_told_to_finish()) return;
  if (!plan_.faults.empty() || !stopped_.empty() || training_->ranks() != plan_.ranks) return;
  if (news_since_event_ < 3 || Clock::now() - last_event_ < kCalm) return;
  if (!std::ranges::all_of(services_, [](const Service& each) { return each.is_running(); })) {
    return;
  }
  if (plan_.ranks < plan_.nodes * plan_.nproc) {  // nobody else sees whether the spare is there
    const std::string all_are_there = "NODES  " + std::to_string(plan_.nodes) + " joined";
    if (status_of(services_.back()).find(all_are_there) == std::string::npos) return;
  }
  finishes_ = true;
  write_file(training_->folder() + "/finish", "");
  note("all is well, after step " + std::to_string(step_) + "; it may finish");
}

void DisturbedJob::check_for_a_hang() {
  const auto now = Clock::now();
  if (now - std::max(last_event_, step_at_) > kLongestSilence) {
    wrong("nothing happens any more, after step " + std::to_string(step_));
  } else if (now - began_ > kLongestJob) {
    wrong("it does not come to its end");
  }
}

// Sockets of agents that were killed stay until another job tidies up.
void DisturbedJob::check_the_end() {
  for (const std::string& each : cluster_.left_over()) wrong("left behind: " + each);
  if (plan_.meeting != Meeting::kOneNode && is_listening(cluster_.port())) {
    wrong("somebody listens at the leader's port");
  }
  const auto is_expected = [this](const fs::path& socket) {
    const std::string pid = socket.stem().extension();  // job.PID.sock
    return pid.empty() ? !crashed_.empty() : crashed_.contains(std::stoi(pid.substr(1)));
  };
  for (const auto& entry : fs::directory_iterator(control_.path())) {
    if (!is_expected(entry.path())) wrong("left behind: " + entry.path().string());
  }
  if (!crashed_without_keeper_) {
    for (const auto& entry : fs::directory_iterator(temporary_.path())) {
      wrong("left behind: " + entry.path().string());
    }
  }
  if (cluster_.told().find(kNeverHappens) != std::string::npos) wrong("the ranks differed");
  if (const std::string difference = training_->difference(); !difference.empty()) {
    wrong(difference);
  }
}

std::string DisturbedJob::status_of(const Service& service) {
  Job status(ddpctl({"status", std::to_string(job_of(service).pid())}),
             {.environment = {{"DDPRUN_CONTROL_DIR", control_.path()}}});
  const Ended ended = status.wait(10s);
  return "ddpctl status: " + ::testing::PrintToString(ended) + "\n" + status.out() + status.err();
}

std::string DisturbedJob::all_that_is_known() {
  std::ostringstream text;
  text << wrong_ << "\nDDPRUN_CAMPAIGN_SEED=" << plan_.seed << ": " << plan_.meeting
       << ", --nnodes=" << plan_.nnodes << ", " << plan_.nodes << " nodes of " << plan_.nproc
       << " workers\n"
       << history_;
  for (const Service& service : services_) {
    if (!service.is_running() || service.node == kLeaderService) continue;
    text << "---- " << name_of_service(service.node) << "\n" << status_of(service);
  }
  text << cluster_.told();
  return text.str();
}

std::string DisturbedJob::run() {
  Random delays(plan_.seed);
  if (plan_.meeting == Meeting::kLeader)
    services_.push_back({kLeaderService, Random(delays.next())});
  for (int node = 0; node < plan_.nodes; ++node) services_.push_back({node, Random(delays.next())});
  for (Service& service : services_) start(service);
  records_.add_job(plan_.meeting);
  while (wrong_.empty() && !all_have_ended()) {
    for (Service& service : services_) tend(service);
    observe();
    let_go_on();
    strike_when_due();
    finish_when_calm();
    check_for_a_hang();
    std::this_thread::sleep_for(3ms);
  }
  // The training may have come to its end before all are continued that were to be.
  for (Stopped& each : stopped_) each.until = {};
  let_go_on();
  if (wrong_.empty()) check_the_end();
  return wrong_.empty() ? "" : all_that_is_known();
}

// ---- many jobs

std::optional<int> number_in(const char* variable) {
  const char* given = std::getenv(variable);
  if (given == nullptr) return std::nullopt;
  return std::atoi(given);
}

using MakeTraining = std::function<std::unique_ptr<Training>(const JobPlan&)>;

JobPlan draw_plan(unsigned seed, bool is_elastic) {
  Random random(seed);
  JobPlan plan;
  plan.seed = seed;
  plan.meeting = kMeetings[seed % kMeetings.size()];
  plan.faults = draw_faults(random, plan.meeting, seed / kMeetings.size());
  struct Size {
    int nodes;
    std::string nnodes;
  };
  const std::vector<Size> elastic{{2, "2"}, {2, "1:2"}, {3, "2:3"}, {3, "2"}};  // one is a spare
  const std::vector<Size> fixed{{2, "2"}, {3, "3"}};
  if (plan.meeting == Meeting::kOneNode) {
    plan.nproc = is_elastic ? random.number(1, 3) : 2;
    plan.ranks = plan.nproc;
    return plan;
  }
  const auto& sizes = plan.meeting == Meeting::kStatic ? fixed : elastic;
  const int size = is_elastic ? random.number(0, static_cast<int>(sizes.size()) - 1) : 0;
  plan.nodes = sizes[static_cast<std::size_t>(size)].nodes;
  plan.nnodes = sizes[static_cast<std::size_t>(size)].nnodes;
  plan.nproc = is_elastic ? random.number(1, 2) : 1;
  plan.ranks = plan.nproc * (plan.nnodes == "2" ? 2 : plan.nodes);
  return plan;
}

void run_campaign(int jobs, bool is_elastic, const MakeTraining& make_training) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  jobs = number_in("DDPRUN_CAMPAIGN_JOBS").value_or(jobs);
  const auto first = static_cast<unsigned>(
      number_in("DDPRUN_CAMPAIGN_SEED")
          .value_or(static_cast<int>(std::random_device{}() % 1'000'000'000)));
  ::testing::Test::RecordProperty("seed", static_cast<int>(first));
  std::cout << "DDPRUN_CAMPAIGN_SEED=" << first << "\n";
  std::optional<EtcdServers> etcd;
  if (const std::string obstacle = EtcdServers::obstacle(); obstacle.empty()) {
    etcd.emplace();
  } else {
    std::cout << "no job with etcd: " << obstacle << "\n";
  }

  Records records;
  std::atomic<int> next = 0;
  std::mutex mutex;
  std::vector<std::string> failures;
  const auto run_jobs = [&] {
    for (int number = next++; number < jobs; number = next++) {
      std::string failure;
      try {
        JobPlan plan = draw_plan(first + static_cast<unsigned>(number), is_elastic);
        if (plan.meeting == Meeting::kEtcd && !etcd) continue;
        auto training = make_training(plan);
        failure =
            DisturbedJob(std::move(plan), std::move(training), etcd ? &*etcd : nullptr, records)
                .run();
      } catch (const std::exception& e) {
        failure = e.what();
      }
      if (failure.empty()) continue;
      next = jobs;  // the others end what they have begun
      const std::lock_guard lock(mutex);
      failures.push_back(failure);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < kJobsAtATime; ++i) threads.emplace_back(run_jobs);
  threads.clear();
  records.print(std::cout);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

TEST(Campaign, EveryJobEndsWithTheWeightsOfAnUndisturbedTraining) {
  run_campaign(full_tests() ? 92 : 10, /*is_elastic=*/true,
               [](const JobPlan&) { return std::make_unique<TrainingOfIntegers>(); });
}

#ifdef DDPRUN_TRAIN

// The example `train`, for the weights that people train: with LibTorch, shared memory and Gloo.
class TrainingOfImages : public Training {
 public:
  explicit TrainingOfImages(const std::string& undisturbed) : undisturbed_(undisturbed) {}

  static constexpr int kEpochs = 10;
  static constexpr int kSteps = kEpochs * 63;  // with two ranks

  static Command command(const std::string& checkpoints) {
    Command command = training(checkpoints, kEpochs);
    command.front() = DDPRUN_TRAIN;
    return command;
  }

  Command program() const override { return command(folder()); }
  int last_step() override { return last_step_in(folder()); }
  int ranks() override { return 2; }
  bool has_time() override { return last_step() < kSteps - 150; }
  std::string difference() const override {
    return end_with_the_same_bytes(undisturbed_, folder()) ? "" : "its weights are others";
  }

 private:
  std::string undisturbed_;
};

TEST(Campaign, EveryTrainingWithLibTorchEndsWithTheSameWeights) {
  const TemporaryTree undisturbed;
  Job job(ddprun({"--nproc-per-node=2"}, TrainingOfImages::command(undisturbed.path())));
  ASSERT_EQ(job.wait(240s), exited(0)) << job.err();
  run_campaign(full_tests() ? 8 : 2, /*is_elastic=*/false, [&](const JobPlan&) {
    return std::make_unique<TrainingOfImages>(undisturbed.path());
  });
}

#endif

}  // namespace
}  // namespace ddprun::test
