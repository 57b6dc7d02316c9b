// What the pods of Kubernetes are told, and what that comes to beside what their manifests say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/settings/settings.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using Words = std::vector<std::string>;

// Pod 1 of the Indexed Job "train"; every pod has the two others.
Environment pod(Environment more = {}) {
  more.try_emplace("JOB_COMPLETION_INDEX", "1");
  more.try_emplace("HOSTNAME", "train-1");
  more.try_emplace("KUBERNETES_SERVICE_HOST", "10.96.0.1");
  return more;
}

class Kubernetes : public Planning {
 protected:
  std::string origin(const Result<Plan>& plan, OptionId id) {
    return to_string(plan->settings[id].origin);
  }
};

TEST_F(Kubernetes, GivesAnIndexedJobItsNodes) {
  const auto made = plan({}, pod({{"PET_NNODES", "2"}}));
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->settings.site.name, "Kubernetes");
  EXPECT_EQ(made->job.nodes.node_rank, 1);
  EXPECT_EQ(made->job.nodes.leader.where, rdzv::LeaderSpec::Where::kElsewhere);
  EXPECT_EQ(made->job.nodes.leader.endpoint, (rdzv::Endpoint{"train-0.train", 29500}));
  EXPECT_EQ(origin(made, OptionId::kNodeRank), "JOB_COMPLETION_INDEX");
  EXPECT_EQ(origin(made, OptionId::kMasterAddr), "HOSTNAME");
  EXPECT_THAT(made->warnings, IsEmpty());
  const auto first =
      job({}, pod({{"PET_NNODES", "2"}, {"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "train-0"}}));
  EXPECT_EQ(first.nodes.leader.where, rdzv::LeaderSpec::Where::kHere);
}

TEST_F(Kubernetes, NumbersPodsBeyondNine) {
  const auto made =
      job({"--nnodes=12"}, pod({{"JOB_COMPLETION_INDEX", "11"}, {"HOSTNAME", "bert-2-11"}}));
  EXPECT_EQ(made.nodes.node_rank, 11);
  EXPECT_EQ(made.nodes.leader.endpoint.host, "bert-2-0.bert-2");
}

TEST_F(Kubernetes, MeetsElasticallyAtTheSamePod) {
  const auto made = job({"--nnodes=1:4", "--rdzv-backend=c10d"}, pod());
  EXPECT_EQ(made.nodes.leader.endpoint, (rdzv::Endpoint{"train-0.train", 29400}));
  EXPECT_EQ(made.nodes.node_rank, 1);
}

TEST_F(Kubernetes, TakesTheNamesOfAJobSet) {
  const Environment names{{"HOSTNAME", "llm-node-0-1"},
                          {"PET_NNODES", "4"},
                          {"JOBSET_NAME", "llm"},
                          {"JOBSET_RESTART_ATTEMPT", "3"}};
  const auto made = plan({}, pod(names));
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->job.nodes.leader.endpoint.host, "llm-node-0-0.llm");
  EXPECT_EQ(made->job.run_id, "llm-3");
  EXPECT_EQ(origin(made, OptionId::kRdzvId), "JOBSET_NAME and JOBSET_RESTART_ATTEMPT");
}

TEST_F(Kubernetes, TakesTheSubdomainFromAWholeHostName) {
  const auto made =
      job({"--nnodes=2"}, pod({{"HOSTNAME", "train-1.nodes.team.svc.cluster.local"}}));
  EXPECT_EQ(made.nodes.leader.endpoint.host, "train-0.nodes.team.svc.cluster.local");
}

// What Kubeflow Trainer and the training operator set is all there is to it.
TEST_F(Kubernetes, LeavesAPodThatSaysAllByPetAlone) {
  const Environment pet{{"PET_NNODES", "2"},          {"PET_NPROC_PER_NODE", "auto"},
                        {"PET_NODE_RANK", "1"},       {"PET_MASTER_ADDR", "llm-node-0-0.llm"},
                        {"PET_MASTER_PORT", "29500"}, {"OMP_NUM_THREADS", "1"}};
  const auto bare = job({}, pet);
  auto made = plan({}, pod(pet));
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_THAT(made->warnings, IsEmpty());
  EXPECT_EQ(made->job.nodes, bare.nodes);
  EXPECT_EQ(made->job.store_endpoint, bare.store_endpoint);
  EXPECT_EQ(made->job.run_id, bare.run_id);
  EXPECT_EQ(bare.local_world_size, 6);  // no GPU: the machine's CPUs
}

// The training operator's pods are of no Job; RANK and WORLD_SIZE, which it sets too, are the
// workers' to get.
TEST_F(Kubernetes, TakesWhatTheOperatorSets) {
  const auto made = plan({}, {{"MASTER_ADDR", "llm-master-0"},
                              {"MASTER_PORT", "23456"},
                              {"WORLD_SIZE", "16"},
                              {"RANK", "1"},
                              {"PYTHONUNBUFFERED", "1"},
                              {"PET_MASTER_ADDR", "llm-master-0"},
                              {"PET_MASTER_PORT", "23456"},
                              {"PET_NODE_RANK", "1"},
                              {"PET_NPROC_PER_NODE", "8"},
                              {"PET_NNODES", "2"},
                              {"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->settings.site.name, "");
  EXPECT_EQ(made->job.nodes.leader.endpoint, (rdzv::Endpoint{"llm-master-0", 23456}));
  EXPECT_EQ(made->job.nodes.node_rank, 1);
  EXPECT_EQ(made->job.local_world_size, 8);
  EXPECT_THAT(made->warnings, IsEmpty());
}

TEST_F(Kubernetes, TakesWhatTheOperatorSetsForElasticJobs) {
  const auto made = job({}, {{"PET_NNODES", "1:4"},
                             {"PET_RDZV_BACKEND", "c10d"},
                             {"PET_RDZV_ENDPOINT", "elastic-worker-0:23456"},
                             {"PET_RDZV_ID", "elastic"},
                             {"PET_MAX_RESTARTS", "100"},
                             {"PET_NPROC_PER_NODE", "cpu"}});
  EXPECT_EQ(made.nodes.min_nodes, 1);
  EXPECT_EQ(made.nodes.max_nodes, 4);
  EXPECT_EQ(made.nodes.leader.endpoint, (rdzv::Endpoint{"elastic-worker-0", 23456}));
  EXPECT_EQ(made.restarts.max_restarts, 100);
  EXPECT_EQ(made.local_world_size, 6);
}

TEST_F(Kubernetes, SaysWhoseValueCountsWhereTheyDiffer) {
  const auto made = plan({"--nnodes=2", "--node-rank=0"}, pod());
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->job.nodes.node_rank, 0);
  EXPECT_THAT(made->warnings,
              Contains(AllOf(HasSubstr("--node-rank=0"), HasSubstr("JOB_COMPLETION_INDEX"))));
}

TEST_F(Kubernetes, MakesEveryPodOfItsOwnWhereNobodySaysHowMany) {
  const auto made = plan({}, pod());
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_TRUE(made->job.nodes.is_alone());
  EXPECT_EQ(made->job.store_endpoint.address, "127.0.0.1");
  ASSERT_THAT(made->warnings, ElementsAre(HasSubstr("a job of its own")));
  EXPECT_EQ(made->last_line, made->warnings.front());
  for (const auto& silent : {plan({"--nnodes=1"}, pod()), plan({}, pod({{"PET_NNODES", "1"}})),
                             plan({"--standalone"}, pod({{"HOSTNAME", "?"}}))}) {
    ASSERT_TRUE(silent) << silent.error().to_string();
    EXPECT_THAT(silent->warnings, IsEmpty());
    EXPECT_EQ(silent->last_line, "");
  }
}

TEST_F(Kubernetes, RefusesPodsThatBelongTogetherWhereNobodySaysHowMany) {
  const auto expect_refused = [&](const Words& words, const Environment& more,
                                  const std::string& by) {
    EXPECT_THAT(refusal(words, pod(more)), AllOf(StartsWith("JOB_COMPLETION_INDEX=1"),
                                                 HasSubstr("and " + by), HasSubstr("--nnodes")));
    Words one = words;
    one.push_back("--nnodes=1");
    const auto made = plan(one, pod(more));
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->last_line, "");
  };
  expect_refused({}, {{"JOBSET_NAME", "llm"}}, "JOBSET_NAME");
  expect_refused({"--rdzv-backend=c10d"}, {}, "--rdzv-backend");
  expect_refused({"--rdzv-endpoint=first:1"}, {}, "--rdzv-endpoint");
  expect_refused({"--rdzv-id=job"}, {}, "--rdzv-id");
  expect_refused({"--master-addr=localhost"}, {}, "--master-addr");
  expect_refused({}, {{"PET_NODE_RANK", "0"}}, "PET_NODE_RANK");
  expect_refused({}, {{"HOSTNAME", "train-1.nodes.team.svc.cluster.local"}},
                 "the pods' subdomain nodes says that");

  const std::string kubelet = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n";
  tree_.write("etc/hosts", kubelet + "10.1.2.3\ttrain-1.nodes.team.svc.cluster.local\ttrain-1\n");
  expect_refused({}, {}, "the pods' subdomain nodes says that");
}

// The names of a pod without a subdomain, of another pod, and of a machine.
TEST_F(Kubernetes, OtherNamesInTheFileOfHostsAreNoSubdomain) {
  for (const std::string line : {"10.1.2.3\ttrain-1", "10.1.2.3\ttrain-1.example.com train-1",
                                 "10.1.2.3\tmy-train-1.nodes.team.svc.cluster.local",
                                 "10.1.2.3\ttrain-12.nodes.team.svc.cluster.local"}) {
    tree_.write("etc/hosts", line + "\n");
    const auto made = plan({}, pod());
    ASSERT_TRUE(made) << line << made.error().to_string();
    EXPECT_NE(made->last_line, "") << line;
  }
}

TEST_F(Kubernetes, SaysWhomTheAgentTellsOfTheJob) {
  const auto made = plan({}, {{"KUBEFLOW_TRAINER_SERVER_URL", "https://trainer/status"},
                              {"NOTIFY_SOCKET", "/run/notify"}});
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_THAT(made->notes, AllOf(Contains(HasSubstr("https://trainer/status")),
                                 Contains(HasSubstr("/run/notify"))));
}

TEST_F(Kubernetes, EndsBeforeThePodIsKilled) {
  EXPECT_EQ(job({}, pod()).shutdown_timeout, seconds(20));
  EXPECT_EQ(job({"--shutdown-timeout=45"}, pod()).shutdown_timeout, seconds(45));
  EXPECT_EQ(job({}).shutdown_timeout, seconds(30));
}

TEST_F(Kubernetes, IsNoSiteForAnyOtherPodNorInsideOfAWorker) {
  EXPECT_FALSE(find_site({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"HOSTNAME", "shell-1"}}));
  EXPECT_FALSE(find_site({{"JOB_COMPLETION_INDEX", ""}}));
  EXPECT_FALSE(find_site(pod({{"TORCHELASTIC_RUN_ID", "none"}})));
}

// ---- what cannot be: one sentence

TEST_F(Kubernetes, RefusesAnIndexThatIsNone) {
  for (const std::string index : {"one", "-1", "1.0", " 1", "01", "99999999999"}) {
    const Environment wrong{{"JOB_COMPLETION_INDEX", index}, {"HOSTNAME", "train-" + index}};
    EXPECT_THAT(refusal({"--nnodes=2"}, pod(wrong)), StartsWith("JOB_COMPLETION_INDEX=" + index))
        << index;
    EXPECT_TRUE(plan({"--nnodes=2", "--node-rank=1", "--master-addr=first"}, pod(wrong))) << index;
    EXPECT_TRUE(plan({}, pod(wrong))) << index;
  }
}

TEST_F(Kubernetes, RefusesAnIndexThatTheJobHasNoNodeFor) {
  EXPECT_THAT(refusal({"--nnodes=2"}, pod({{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "a-2"}})),
              AllOf(HasSubstr("JOB_COMPLETION_INDEX"), HasSubstr("from 0 to 1")));
}

TEST_F(Kubernetes, RefusesAHostNameThatDoesNotTellThePodWithIndex0) {
  for (const std::string host : {"", "-1", "gpu-node-17", "train-11"}) {
    EXPECT_THAT(refusal({"--nnodes=2"}, pod({{"HOSTNAME", host}})),
                AllOf(StartsWith("HOSTNAME=" + host), HasSubstr("--master-addr")))
        << host;
    EXPECT_TRUE(plan({"--nnodes=2", "--master-addr=first"}, pod({{"HOSTNAME", host}}))) << host;
  }
}

}  // namespace
}  // namespace ddprun::cli
