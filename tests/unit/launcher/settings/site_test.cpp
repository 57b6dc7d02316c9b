// Which of a site's values count beside what the user said; the sites themselves have tests of their
// own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "launcher/settings/settings.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

// Node 1 of three, all of them told so by the variables COUNT, RANK and HOSTS.
Site three_nodes() {
  Site site;
  site.name = "Somewhere";
  site.values = {{OptionId::kNnodes, SiteValue{"3", "COUNT"}},
                 {OptionId::kNodeRank, SiteValue{"1", "RANK"}},
                 {OptionId::kMasterAddr, SiteValue{"first", "HOSTS", /*is_proposal=*/true}},
                 {OptionId::kMasterPort, SiteValue{"12345", "JOB", /*is_proposal=*/true}},
                 {OptionId::kRdzvId, SiteValue{"job7", "JOB", /*is_proposal=*/true}}};
  return site;
}

Settings resolved(const Words& words, const Site& site = three_nodes(),
                  const Environment& environment = {}, const FileValues& file = {}) {
  const auto line = parse_command_line(words);
  EXPECT_TRUE(line);
  return resolve(*line, environment, file, site);
}

Setting from_site(const std::string& text, const std::string& from) {
  return {text, {Source::kSite, from}};
}

TEST(SiteRules, FillsInWhatNobodySaid) {
  const Settings settings = resolved({});
  EXPECT_EQ(settings[OptionId::kNnodes], from_site("3", "COUNT"));
  EXPECT_EQ(settings[OptionId::kNodeRank], from_site("1", "RANK"));
  EXPECT_EQ(settings[OptionId::kMasterAddr], from_site("first", "HOSTS"));
  EXPECT_EQ(settings[OptionId::kMasterPort], from_site("12345", "JOB"));
  EXPECT_EQ(settings[OptionId::kRdzvId], from_site("job7", "JOB"));
  EXPECT_TRUE(settings[OptionId::kRdzvBackend].is_default());
  EXPECT_EQ(settings.site.name, "Somewhere");
  EXPECT_THAT(settings.site.notes, IsEmpty());
  EXPECT_THAT(settings.site.warnings, IsEmpty());
}

TEST(SiteRules, WhateverWasSaidGoesBefore) {
  const OptionId id = OptionId::kNodeRank;
  EXPECT_EQ(resolved({"--node-rank=2"})[id].origin.name, "--node-rank");
  EXPECT_EQ(resolved({}, three_nodes(), {{"PET_NODE_RANK", "2"}})[id].origin.name, "PET_NODE_RANK");
  EXPECT_EQ(
      resolved({}, three_nodes(), {}, {{id, {"2", {Source::kFile, "job.toml:3"}}}})[id].origin.name,
      "job.toml:3");
}

TEST(SiteRules, AContradictionIsTold) {
  EXPECT_THAT(resolved({"--node-rank=2"}).site.warnings,
              ElementsAre("--node-rank=2 goes before RANK, which gives 1"));
  EXPECT_THAT(resolved({"--node-rank=1"}).site.warnings, IsEmpty());
  const Settings other_id = resolved({"--rdzv-id=mine"});
  EXPECT_THAT(other_id.site.warnings, IsEmpty()) << "it was only proposed";
  EXPECT_THAT(other_id.site.notes, ElementsAre("--rdzv-id=mine goes before JOB, which gives job7"));
}

TEST(SiteRules, AnotherNumberOfNodesIsAnotherJob) {
  for (const std::string nodes : {"--nnodes=1", "--nnodes=2", "--nnodes=3:4"}) {
    const Settings settings = resolved({nodes});
    for (const OptionId id : {OptionId::kNodeRank, OptionId::kMasterAddr, OptionId::kMasterPort,
                              OptionId::kRdzvId, OptionId::kRdzvEndpoint}) {
      EXPECT_TRUE(settings[id].is_default()) << nodes << " " << spec_of(id).name;
    }
    EXPECT_THAT(settings.site.warnings, ElementsAre(HasSubstr(nodes + " goes before COUNT=3")));
  }
}

TEST(SiteRules, FewerAreStillTheSitesNodes) {
  const Settings settings = resolved({"--nnodes=1:3", "--rdzv-backend=c10d"});
  EXPECT_EQ(settings[OptionId::kNodeRank], from_site("1", "RANK"));
  EXPECT_EQ(settings[OptionId::kRdzvEndpoint], from_site("first:12345", "HOSTS"));
  EXPECT_TRUE(settings[OptionId::kMasterAddr].is_default());
  EXPECT_TRUE(settings[OptionId::kMasterPort].is_default());
  EXPECT_THAT(settings.site.warnings, IsEmpty());
}

TEST(SiteRules, StandaloneTakesNothingAboutNodes) {
  Site site = three_nodes();
  site.values.insert({OptionId::kPreemptSignal, SiteValue{"USR1", "here"}});
  const Settings settings = resolved({"--standalone"}, site);
  EXPECT_TRUE(settings[OptionId::kNnodes].is_default());
  EXPECT_TRUE(settings[OptionId::kRdzvId].is_default());
  EXPECT_EQ(settings[OptionId::kPreemptSignal], from_site("USR1", "here"));
  EXPECT_THAT(settings.site.warnings, IsEmpty());
}

TEST(SiteRules, AnotherMeetingPlaceReplacesTheWholeOfTheSites) {
  for (const Words& words : {Words{"--master-addr=m"}, Words{"--rdzv-endpoint=m:1"},
                             Words{"--rdzv-backend=c10d", "--rdzv-endpoint=m:1"}}) {
    const Settings settings = resolved(words);
    EXPECT_NE(settings[OptionId::kMasterAddr].text, "first");
    EXPECT_NE(settings[OptionId::kRdzvEndpoint].text, "first:12345");
    EXPECT_TRUE(settings[OptionId::kMasterPort].is_default());
    EXPECT_EQ(settings[OptionId::kNodeRank], from_site("1", "RANK"));
    EXPECT_THAT(settings.site.notes, ElementsAre(HasSubstr(" goes before first (HOSTS)")));
  }
  EXPECT_EQ(resolved({"--master-port=7"})[OptionId::kMasterAddr], from_site("first", "HOSTS"))
      << "another port there";
}

TEST(SiteRules, EtcdIsNotOnANode) {
  const Settings settings = resolved({"--rdzv-backend=etcd"});
  EXPECT_TRUE(settings[OptionId::kRdzvEndpoint].is_default());
  EXPECT_TRUE(settings[OptionId::kMasterPort].is_default());
  EXPECT_EQ(settings[OptionId::kRdzvId], from_site("job7", "JOB"));
}

TEST(SiteRules, OneNodeMeetsNobody) {
  Site site = three_nodes();
  site.values.insert_or_assign(OptionId::kNnodes, SiteValue{"1", "COUNT"});
  const Settings settings = resolved({}, site);
  EXPECT_TRUE(settings[OptionId::kMasterAddr].is_default());
  EXPECT_TRUE(settings[OptionId::kMasterPort].is_default());
  EXPECT_TRUE(settings[OptionId::kNodeRank].is_default());
  EXPECT_EQ(settings[OptionId::kRdzvId], from_site("job7", "JOB"));

  site.values.erase(OptionId::kNnodes);
  EXPECT_TRUE(resolved({}, site)[OptionId::kNodeRank].is_default()) << "nobody says how many";
  EXPECT_EQ(resolved({"--nnodes=3"}, site)[OptionId::kNodeRank], from_site("1", "RANK"));
}

TEST(SiteRules, WhatTheSiteCannotKnowMattersOnlyIfNobodySaysIt) {
  Site site = three_nodes();
  const Error error{ErrorCode::kInvalidArgument, "RANK=x makes no sense", {}};
  site.values.insert_or_assign(OptionId::kNodeRank, tl::unexpected(error));
  ASSERT_TRUE(resolved({}, site).site.error);
  EXPECT_EQ(resolved({}, site).site.error->message, error.message);
  EXPECT_FALSE(resolved({"--node-rank=0"}, site).site.error);
  EXPECT_FALSE(resolved({"--standalone"}, site).site.error);
  EXPECT_FALSE(resolved({"--nnodes=1"}, site).site.error);
}

TEST(SiteRules, AdviceAboutNodesIsForThoseWhoSayNothingAboutThem) {
  Site site;
  site.name = "Somewhere";
  site.warnings = {"beware"};
  EXPECT_THAT(resolved({}, site).site.warnings, ElementsAre("beware"));
  EXPECT_THAT(resolved({"--nnodes=1"}, site).site.warnings, IsEmpty());
  EXPECT_THAT(resolved({"--standalone"}, site).site.warnings, IsEmpty());
}

TEST(SiteRules, InTorchrunsPlaceItsDefaultsCount) {
  Site site = three_nodes();
  site.is_for_torchrun = true;
  site.warnings = {"beware"};
  site.too_many = {3, Error{ErrorCode::kInvalidArgument, "too many", {}}};
  site.values.insert({OptionId::kNprocPerNode, SiteValue{"8", "GPUS", /*is_proposal=*/true}});
  site.values.insert({OptionId::kPreemptSignal, SiteValue{"USR1", "here"}});
  const Settings alone = resolved({}, site);
  for (const OptionId id : {OptionId::kNnodes, OptionId::kNodeRank, OptionId::kMasterAddr,
                            OptionId::kRdzvId, OptionId::kNprocPerNode}) {
    EXPECT_TRUE(alone[id].is_default()) << spec_of(id).name;
  }
  EXPECT_EQ(alone[OptionId::kPreemptSignal], from_site("USR1", "here"));
  EXPECT_THAT(alone.site.warnings, IsEmpty());
  EXPECT_FALSE(alone.site.error);
  const Settings together = resolved({"--nnodes=3"}, site);
  EXPECT_EQ(together[OptionId::kNodeRank], from_site("1", "RANK"));
  EXPECT_TRUE(together[OptionId::kNprocPerNode].is_default());

  site = three_nodes();
  site.is_for_torchrun = true;
  const Error error{ErrorCode::kInvalidArgument, "this job has 3 nodes", {}};
  site.values.insert_or_assign(OptionId::kNnodes, tl::unexpected(error));
  site.uncounted = {"how many", "JOBSET_NAME"};
  EXPECT_FALSE(resolved({}, site).site.error);
}

TEST(SiteRules, InsideAWorkerOfALauncherThereIsNone) {
  const Environment step = {{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}};
  EXPECT_TRUE(find_site(step));
  Environment worker = step;
  worker["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_FALSE(find_site(worker));
  EXPECT_FALSE(find_site({}));
}

class PlanningSites : public Planning {
 protected:
  const Environment step_ = {{"SLURM_JOB_ID", "4711"},      {"SLURM_STEP_ID", "0"},
                             {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"},
                             {"SLURM_NODEID", "0"},         {"SLURM_PROCID", "0"}};
};

TEST_F(PlanningSites, TheDryRunNamesTheSiteAndTheOrigins) {
  const auto made = plan({}, step_);
  ASSERT_TRUE(made) << made.error().to_string();
  const std::string table = to_table(*made);
  EXPECT_THAT(table, testing::ContainsRegex("site +Slurm\n"));
  EXPECT_THAT(table, testing::ContainsRegex("nnodes +1 +SLURM_STEP_NUM_NODES\n"));
  const auto json = boost::json::parse(to_json(*made));
  EXPECT_EQ(json.at("site"), "Slurm");
  EXPECT_EQ(json.at("settings").at("nnodes").at("origin"), "SLURM_STEP_NUM_NODES");
  EXPECT_TRUE(boost::json::parse(to_json(*plan({}))).at("site").is_null());
}

TEST_F(PlanningSites, TheLogSaysWhoseValueWasDropped) {
  const auto made = plan({"--node-rank=0", "--nnodes=2", "--master-addr=a"}, step_);
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_THAT(made->warnings,
              ElementsAre("--nnodes=2 goes before SLURM_STEP_NUM_NODES=1: nothing about nodes is "
                          "taken from Slurm"));
}

TEST_F(PlanningSites, WhatTheSiteCannotKnowIsRefused) {
  Environment twice = step_;
  twice["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_THAT(refusal({}, twice), HasSubstr("srun started ddprun 8 times on 1 node"));
  EXPECT_TRUE(plan({"--standalone"}, twice)) << "as many jobs as tasks are meant";
}

}  // namespace
}  // namespace ddprun::cli
