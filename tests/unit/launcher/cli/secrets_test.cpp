#include "launcher/cli/secrets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/plan.h"
#include "launcher/settings/config_file.h"

namespace ddprun::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Words = std::vector<std::string>;

TEST(Secrets, OnlyValuesOfKeysThatAreKnownAreShown) {
  EXPECT_EQ(shown_conf("user=u,password=sesame,lease_time=2"), "user=u,password=***,lease_time=2");
  EXPECT_EQ(shown_conf("password_file=/f, token_file = /t"), "password_file=/f, token_file = /t");
  EXPECT_EQ(shown_conf("pasword=sesame,passwd=sesame,Password=sesame"),
            "pasword=***,passwd=***,Password=***");
  EXPECT_EQ(shown_conf(" password = sesame"), " password =***");
  EXPECT_EQ(shown_conf("password=ses=ame"), "password=***");
  EXPECT_EQ(shown_conf("password=ses,ame"), "password=***,***");
  EXPECT_EQ(shown_conf("password=,sesame,more,timeout=1,a"), "password=,***,***,timeout=1,a");
  EXPECT_EQ(shown_conf("'user=u,password=sesame'"), "'user=u,password=***");
  EXPECT_EQ(shown_conf("a,timeout=1,,password="), "a,timeout=1,,password=");
  EXPECT_EQ(shown_conf("password:sesame,=sesame"), "***,=***");
  EXPECT_EQ(shown_conf(""), "");
}

TEST(Secrets, APasswordBesideItsOptionIsNotShown) {
  EXPECT_EQ(shown_text("password=sesame"), "password=***");
  EXPECT_EQ(shown_text("--rdzv-cof=user=u,pasword=sesame,timeout=3"),
            "--rdzv-cof=user=u,pasword=***");
  EXPECT_EQ(shown_text("-rdzv-conf=password=sesame\nmore"), "-rdzv-conf=password=***\nmore");
  for (const char* text : {"", "lr=0.1,batch=3", "logs/a=b", "0:1,2:3", "password", "password="}) {
    EXPECT_EQ(shown_text(text), text);
  }
}

// Everything that the launcher may say of a command line.
struct Said {
  Words command_line;
  Environment environment{};
  std::string config{};
};

std::string all_that_is_said(const Said& said) {
  const auto line = parse_command_line(said.command_line);
  if (!line) return line.error().to_string();
  const auto file = parse_config(said.config, "job.toml");
  if (!file) return file.error().to_string();
  const Surroundings surroundings{{"/", own_folder}, {}, "id"};
  const auto plan =
      make_plan(resolve(*line, said.environment, file->values), line->command, {}, surroundings);
  if (!plan) return plan.error().to_string();
  std::string text = to_table(*plan) + to_json(*plan);
  for (const std::string& warning : plan->warnings) text += warning;
  for (const std::string& note : plan->notes) text += note;
  return text;
}

TEST(Secrets, NoSentenceShowsAPassword) {
  const Words nodes = {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e"};
  const auto words = [&nodes](const Words& more) {
    Words all = nodes;
    all.insert(all.end(), more.begin(), more.end());
    all.emplace_back("/bin/true");
    return all;
  };
  std::vector<Said> cases;
  for (const std::string conf :
       {"user=u,password=sesame", "password=sesame", "pasword=sesame", "user=u,password=sesame,x=y",
        "user=u,password=sesame,timeout=x", "user=u,password=sesame,",
        "password=sesame,password_file=/f", "user=u,password=sesame,is_host=perhaps",
        "user=u,password=sesame,store_type=file", "user=u,password=sesame,backend=c10d",
        "user=u,password=sesame,protocol=ftp", "'user=u,password=sesame'",
        "user=u,password='sesame'", "user=u,password=,sesame", "user=u,password:sesame"}) {
    cases.push_back({words({"--rdzv-conf=" + conf})});
    cases.push_back({words({"--rdzv_conf", conf})});
    for (const char* variable : {"PET_RDZV_CONF", "DDPRUN_RDZV_CONF"}) {
      cases.push_back({words({}), {{variable, conf}}});
    }
    cases.push_back({words({}), {}, "rdzv-conf = \"" + conf + "\""});
    for (const char* slip : {"--rdzv-cof=", "-rdzv-conf=", "--nnodes="}) {
      if (conf.find(':') == std::string::npos && conf.find(",sesame") == std::string::npos) {
        cases.push_back({words({slip + conf})});
      }
    }
  }
  for (const char* table : {"{ user = 'u', password = 'sesame', x = 1 }", "{ password = sesame }",
                            "{ password = 'sesame }", "{ password = ['sesame'] }",
                            "{ user = 'u', password = 'sesame', timeout = 'x' }"}) {
    cases.push_back({words({}), {}, std::string("rdzv-conf = ") + table});
  }
  cases.push_back({words({}), {}, "password = 'sesame'"});
  // A blank after the comma makes the password the program.
  cases.push_back({words({"--rdzv-conf", "user=u", "password=sesame"})});
  for (const Said& said : cases) {
    const std::string text = all_that_is_said(said);
    EXPECT_THAT(text, Not(IsEmpty()));
    EXPECT_THAT(text, Not(HasSubstr("sesame")))
        << testing::PrintToString(said.command_line) << testing::PrintToString(said.environment)
        << said.config;
  }
}

// What the TOML reader "saw" is the beginning of the value.
TEST(Secrets, AValueWithoutQuotesInAFileIsNotShown) {
  const auto file = parse_config("rdzv-conf = { password = tresor }", "job.toml");
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().to_string(), HasSubstr("job.toml:1: this is not TOML: "));
  EXPECT_THAT(file.error().to_string(), Not(HasSubstr("tre")));
}

}  // namespace
}  // namespace ddprun::cli
