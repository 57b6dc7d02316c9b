#include "rendezvous/common/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const Environment kInherited{{"B", "2"}, {"D", "4"}, {"F", "6"}};

TEST(Environment, IsReadAsGetenvReadsIt) {
  const char* const envp[] = {"B=2", "A=1=one", "no equals sign", "B=3", "EMPTY=", nullptr};
  EXPECT_THAT(environment_from(envp),
              ElementsAre(Pair("A", "1=one"), Pair("B", "2"), Pair("EMPTY", "")));
  EXPECT_THAT(environment_from(nullptr), IsEmpty());
}

TEST(ChildEnvironment, InheritsAllThatItDoesNotChange) {
  const ChildEnvironment child(kInherited);
  EXPECT_EQ(child.lines(), to_lines(kInherited));
  EXPECT_THAT(child.own(), IsEmpty());
  EXPECT_TRUE(child.has("D"));
  EXPECT_EQ(child.value_or_empty("D"), "4");
  EXPECT_FALSE(child.has("E"));
  EXPECT_EQ(child.value_or_empty("E"), "");
}

TEST(ChildEnvironment, ItsLinesAreSortedWhereverAChangeStands) {
  ChildEnvironment child(kInherited);
  child.set("A", "first");
  child.set("D", "changed");
  child.set("E", "");
  child.set("G", "last");
  EXPECT_THAT(child.lines(), ElementsAre("A=first", "B=2", "D=changed", "E=", "F=6", "G=last"));
}

TEST(ChildEnvironment, WhatIsUnsetIsNotInherited) {
  ChildEnvironment child(kInherited);
  child.set("C", "3");
  for (const char* const name : {"B", "C", "F", "never set"}) child.unset(name);
  EXPECT_THAT(child.lines(), ElementsAre("D=4"));
  EXPECT_FALSE(child.has("B"));
  EXPECT_EQ(child.value_or_empty("F"), "");
  child.set("B", "again");
  EXPECT_THAT(child.lines(), ElementsAre("B=again", "D=4"));
}

TEST(ChildEnvironment, ADefaultChangesNothingThatIsThere) {
  ChildEnvironment child(kInherited);
  child.set("A", "set");
  child.unset("F");
  for (const char* const name : {"A", "B", "C", "F"}) child.set_default(name, "default");
  EXPECT_THAT(child.lines(), ElementsAre("A=set", "B=2", "C=default", "D=4", "F=default"));
}

TEST(ChildEnvironment, ItsOwnIsWhatDiffers) {
  ChildEnvironment child(kInherited);
  child.set("B", "2");
  child.set("D", "other");
  child.set("E", "5");
  child.unset("F");
  EXPECT_THAT(child.own(), ElementsAre(Pair("D", "other"), Pair("E", "5")));
}

}  // namespace
}  // namespace ddprun
