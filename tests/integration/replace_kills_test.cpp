// Workers are killed at random moments, also while another one is being replaced: on one node and on two, over shared
// memory and Gloo. The training ends with the bits of an undisturbed one of as many steps (model and optimizer,
// random numbers and the sum of the losses of every rank, so no sample was used twice or not at all), and nothing grows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using ::testing::IsEmpty;

constexpr seconds kTime{60};

struct Way {
  const char* backend;
  int nodes;
  int ranks;  // of each node
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.backend << "_" << way.nodes << "x" << way.ranks;
}

std::ptrdiff_t descriptors_of(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return std::distance(begin(all), end(all));
}

class ReplaceKills : public ::testing::TestWithParam<Way> {
 protected:
  ClusterSetup cluster(const std::string& folder, std::map<std::string, std::string> variables) {
    ClusterSetup setup{
        .meeting = GetParam().nodes == 1 ? Meeting::kOneNode : Meeting::kStatic,
        .nproc = GetParam().ranks,
        .options = {"--standby=" +
                        std::string(is_over_nccl() ? std::to_string(GetParam().ranks) : "auto"),
                    "--no-python", "--max-restarts=100000", "--events=" + marks_ / "events"},
        .environment = std::move(variables),
        .program = {DDPRUN_MORTAL_TRAINING, folder, "now", GetParam().backend},
        .is_on_fake_gpu = is_over_nccl()};
    setup.environment["FAKE_NCCL_ABORT_MS"] = "100";
    setup.environment["DDPRUN_CONTROL_DIR"] = marks_ / "control";
    setup.environment["OMP_NUM_THREADS"] = "1";
    return setup;
  }

  static bool is_over_nccl() { return GetParam().backend == std::string("nccl"); }

  struct State {
    bool is_ready = true;        // each rank has a standby
    std::vector<pid_t> workers;  // by rank
    std::int64_t store_keys = 0;
    std::vector<std::ptrdiff_t> descriptors;  // of the agents
  };
  // Nothing: not all nodes have answered.
  std::optional<State> look(Cluster& job) const {
    const Told told = run_to_its_end(ddpctl({"status", "--json", std::to_string(job[0].pid())}),
                                     {.environment = {{"DDPRUN_CONTROL_DIR", marks_ / "control"}}});
    try {
      return state_in(boost::json::parse(told.out), job);
    } catch (const std::exception&) {  // there is no answer yet, or not a whole one
      return std::nullopt;
    }
  }
  std::optional<State> state_in(const boost::json::value& status, Cluster& job) const {
    State state;
    std::map<std::int64_t, pid_t> workers;
    const auto& nodes = status.at("nodes").as_array();
    if (std::cmp_not_equal(nodes.size(), GetParam().nodes)) return std::nullopt;
    for (const auto& node : nodes) {
      const auto& replacement = node.at("replacement");
      state.is_ready = state.is_ready && replacement.at("can_recover").as_bool() &&
                       replacement.at("waiting").as_int64() == GetParam().ranks;
      for (const auto& worker : node.at("workers").as_array()) {
        if (worker.at("state").as_string() != "running") return std::nullopt;
        workers[worker.at("rank").as_int64()] = static_cast<pid_t>(worker.at("pid").as_int64());
      }
      if (const auto* store = node.as_object().if_contains("store"); store && store->is_object()) {
        state.store_keys += store->at("keys").as_int64();
      }
    }
    for (const auto& [rank, pid] : workers) state.workers.push_back(pid);
    if (std::cmp_not_equal(workers.size(), GetParam().nodes * GetParam().ranks))
      return std::nullopt;
    for (int node = 0; node < GetParam().nodes; ++node) {
      state.descriptors.push_back(descriptors_of(job[node].pid()));
    }
    return state;
  }
  // Nothing: not in time.
  std::optional<State> is_ready(Cluster& job, const std::set<pid_t>& dead) const {
    std::optional<State> state;
    const bool holds = eventually(
        [&] {
          state = look(job);
          return state && state->is_ready && std::ranges::none_of(state->workers, [&](pid_t pid) {
                   return dead.contains(pid);
                 });
        },
        kTime);
    return holds ? state : std::nullopt;
  }
  std::string events() const { return read_file(marks_ / "events"); }
  std::size_t count_of(const std::string& part) const { return test::count_of(part, events()); }

  const TemporaryTree marks_;
};

TEST_P(ReplaceKills, AtRandomMomentsLeaveTheSameBits) {
  const int kills = full_tests() ? 100 : 5;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto moment = [&](int milliseconds) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<unsigned>(1000 * milliseconds)));
  };
  const TemporaryTree folder;
  // While nobody is killed the training rests: an undisturbed one has to make as many steps.
  const std::string rest = marks_ / "rest";
  marks_.write("rest", "");
  Cluster job(cluster(folder.path(),
                      {{"DDPRUN_MORTAL_END", marks_ / "end"}, {"DDPRUN_MORTAL_REST", rest}}));
  job.start_all(GetParam().nodes);
  std::optional<State> early;
  std::size_t doubles = 0;
  std::set<pid_t> dead;
  for (int kill = 0; kill < kills; ++kill) {
    const auto state = is_ready(job, dead);
    ASSERT_TRUE(state) << job.told();
    if (kill == 3) early = state;
    std::filesystem::remove(rest);
    moment(100);
    const std::size_t world = state->workers.size();
    const std::size_t first = random() % world;
    const auto end = [&](pid_t worker) {
      ::kill(worker, SIGKILL);
      dead.insert(worker);
    };
    end(state->workers[first]);
    if (random() % 4 == 0) {  // another one, while this one is being replaced
      ++doubles;
      moment(40);
      end(state->workers[(first + 1 + random() % (world - 1)) % world]);
    }
    marks_.write("rest", "");
  }
  const auto late = is_ready(job, dead);
  ASSERT_TRUE(late) << job.told();
  if (early) {
    EXPECT_LE(late->store_keys, early->store_keys + 16);  // of two more generations
    for (std::size_t node = 0; node < early->descriptors.size(); ++node) {
      EXPECT_LE(late->descriptors[node], early->descriptors[node] + 12);
    }
  }
  marks_.write("end", "");
  std::filesystem::remove(rest);
  for (int node = 0; node < GetParam().nodes; ++node) {
    ASSERT_EQ(job[node].wait(kTime), exited(0)) << job.told();
    EXPECT_THAT(job[node].left_over(), IsEmpty());
  }
  EXPECT_GE(count_of("\"how\":\"replaced\""), static_cast<std::size_t>(kills) - doubles)
      << events();
  EXPECT_LE(count_of("\"how\":\"restarted\""), doubles * static_cast<std::size_t>(GetParam().nodes))
      << events();

  const TemporaryTree other;
  Cluster undisturbed(cluster(
      other.path(), {{"DDPRUN_MORTAL_STEPS", std::to_string(last_step_in(folder.path()))}}));
  undisturbed.start_all(GetParam().nodes);
  for (int node = 0; node < GetParam().nodes; ++node) {
    ASSERT_EQ(undisturbed[node].wait(kTime), exited(0)) << undisturbed.told();
  }
  EXPECT_TRUE(end_with_the_same_bytes(folder.path(), other.path())) << job.told();
  // A restart forgets the sums of the losses.
  if (count_of("\"round\":1") == 0) {
    EXPECT_EQ(job[0].out(), undisturbed[0].out());
  }
}

std::vector<Way> ways() {
  std::vector<Way> all;
  if (has_fake_gpu()) all.push_back({"nccl", 1, 3});
  if (has_fake_gpu() && full_tests()) all.push_back({"nccl", 1, 2});
  if (!full_tests()) {
    all.insert(all.end(), {{"shm", 1, 3}, {"gloo", 1, 3}, {"shm", 2, 2}, {"gloo", 2, 1}});
    return all;
  }
  for (const char* const backend : {"shm", "gloo"}) {
    for (const auto& [nodes, ranks] : {std::pair(1, 2), {1, 3}, {1, 4}, {2, 1}, {2, 2}}) {
      all.push_back({backend, nodes, ranks});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ways, ReplaceKills, ::testing::ValuesIn(ways()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ddprun::test
