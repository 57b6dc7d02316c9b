// Slurm: what srun, sbatch and salloc tell those that they start. Which variable gives what is a
// table in README.md; those of the step go before those of the job, because a step may be smaller.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "launcher/site.h"
#include "rendezvous/base/slurm.h"

namespace ddprun::cli {
namespace {

constexpr std::string_view kRightUse = "srun --ntasks-per-node=1 ddprun ...";

struct Variable {
  std::string name;
  std::string text;

  std::string said() const { return name + "=" + text; }
};

struct Count {
  int number;
  Variable from;
};

Error contradiction(const Variable& one, const Variable& other, std::string_view why) {
  return {ErrorCode::kInvalidArgument,
          one.said() + " contradicts " + other.said() + ": " + std::string(why) +
              "; start ddprun by srun alone, or say --nnodes, --node-rank and --master-addr",
          {}};
}

class Slurm {
 public:
  explicit Slurm(const Environment& environment) : environment_(environment) {}

  std::optional<Site> site() {
    if (!first_of({"SLURM_JOB_ID"})) return std::nullopt;
    site_.name = "Slurm";
    if (is_in_step()) describe_step();
    return std::move(site_);
  }

 private:
  std::optional<Variable> first_of(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      const auto found = environment_.find(name);
      if (found != environment_.end() && !found->second.empty()) {
        return Variable{found->first, found->second};
      }
    }
    return std::nullopt;
  }

  // Nothing: not set. An Error: no whole number from `least` on.
  Result<std::optional<Count>> count(std::initializer_list<std::string_view> names,
                                     int least) const {
    auto variable = first_of(names);
    if (!variable) return std::nullopt;
    int number = 0;
    const char* const end = variable->text.data() + variable->text.size();
    const auto parsed = std::from_chars(variable->text.data(), end, number);
    if (parsed.ec != std::errc() || parsed.ptr != end || number < least) {
      return fail(ErrorCode::kInvalidArgument,
                  variable->said() + ": it should be a whole number from " + std::to_string(least) +
                      "; start ddprun by " + std::string(kRightUse));
    }
    return Count{number, *std::move(variable)};
  }

  bool is_in_step() const {
    const auto step = first_of({"SLURM_STEP_ID"});
    return step && slurm_step(step->text) && first_of({"SLURM_PROCID"});
  }

  void set(OptionId id, std::string text, std::string from) {
    site_.values.insert_or_assign(id, SiteValue{std::move(text), std::move(from)});
  }
  void refuse(OptionId id, Error error) {
    site_.values.insert_or_assign(id, tl::unexpected(std::move(error)));
  }

  void describe_step() {
    const auto nodes = count({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, 1);
    if (!nodes) return refuse(OptionId::kNnodes, nodes.error());
    if (!*nodes) return;
    set(OptionId::kNnodes, std::to_string((*nodes)->number), (*nodes)->from.name);
    check_tasks(**nodes);
    read_node_rank(**nodes);
  }

  void check_tasks(const Count& nodes) {
    const auto tasks = count({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1);
    if (!tasks) return refuse(OptionId::kNnodes, tasks.error());
    if (!*tasks || (*tasks)->number == nodes.number) return;
    if ((*tasks)->number < nodes.number) {
      return refuse(OptionId::kNnodes,
                    contradiction((*tasks)->from, nodes.from, "every node of a step has a task"));
    }
    refuse(OptionId::kNnodes,
           {ErrorCode::kInvalidArgument,
            "ddprun was started " + std::to_string((*tasks)->number) + " times on " +
                std::to_string(nodes.number) + (nodes.number == 1 ? " node" : " nodes") + " (" +
                (*tasks)->from.name + "), but it starts the workers itself; write " +
                std::string(kRightUse) + ", or srun without ddprun, or --standalone",
            {}});
  }

  void read_node_rank(const Count& nodes) {
    const auto rank = count({"SLURM_NODEID"}, 0);
    if (!rank) return refuse(OptionId::kNodeRank, rank.error());
    if (!*rank) return;
    if ((*rank)->number >= nodes.number) {
      return refuse(OptionId::kNodeRank,
                    contradiction((*rank)->from, nodes.from, "the first node is 0"));
    }
    set(OptionId::kNodeRank, (*rank)->from.text, (*rank)->from.name);
  }

  const Environment& environment_;
  Site site_;
};

}  // namespace

std::optional<Site> slurm_site(const Environment& environment) { return Slurm(environment).site(); }

}  // namespace ddprun::cli
