#include "rendezvous/leader/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "rendezvous/leader/hmac_sha256.h"

namespace ddprun::rdzv {
namespace {

using ::testing::HasSubstr;

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// RFC 4231, test cases 1 to 4, 6 and 7: short keys, and keys longer than a block of SHA-256.
TEST(HmacSha256, IsThatOfRfc4231) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counting(25, '\0');
  std::iota(counting.begin(), counting.end(), '\x01');
  EXPECT_EQ(hex(hmac_sha256(counting, std::string(50, '\xcd'))),
            "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  const std::string long_key(131, '\xaa');
  EXPECT_EQ(hex(hmac_sha256(long_key, "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(hex(hmac_sha256(long_key,
                            "This is a test using a larger than block-size key and a larger than "
                            "block-size data. The key needs to be hashed before being used by the "
                            "HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// As Python's hmac computes it: every place in a block that a message may end at.
TEST(HmacSha256, TakesAnyLength) {
  std::string chained;
  for (std::size_t size = 0; size < 200; ++size) {
    chained = hmac_sha256(chained, std::string(size, 'x'));
  }
  EXPECT_EQ(hex(chained), "3af4dffb56124b58ecdd230d51ebff4690cbadf80820312517aebca2c0abff80");
}

wire::Nonce counting_from(char first) {
  wire::Nonce nonce;
  std::iota(nonce.begin(), nonce.end(), first);
  return nonce;
}

TEST(Token, ProofIsOfTheSideAndBothNonces) {
  // As Python's hmac computes it of the label and the bytes 0 to 63.
  const auto agent = counting_from(0);
  const auto leader = counting_from(32);
  constexpr std::string_view kToken = "what do ya want for nothing?";
  EXPECT_EQ(hex(proof_of(ProofOf::kAgent, kToken, agent, leader)),
            "6e7312b78774e7cd0594a774aa452712f8af04cbea187089837e7e6885b6ec45");
  EXPECT_EQ(hex(proof_of(ProofOf::kLeader, kToken, agent, leader)),
            "fe538d5ccc6f5667b0aaaee3cbe4df189c25395fc9a1d7f5ad21eae3e1d85275");
}

TEST(Token, ProofIsAnotherOneForAnyOtherInput) {
  const auto a = counting_from(0);
  const auto b = counting_from(1);
  const std::string proof = proof_of(ProofOf::kAgent, "token", a, b);
  EXPECT_NE(proof_of(ProofOf::kLeader, "token", a, b), proof);
  EXPECT_NE(proof_of(ProofOf::kAgent, "Token", a, b), proof);
  EXPECT_NE(proof_of(ProofOf::kAgent, "token", b, a), proof);
  EXPECT_NE(proof_of(ProofOf::kAgent, "token", a, a), proof);
  EXPECT_NE(proof_of(ProofOf::kAgent, "token", b, b), proof);
}

TEST(Token, ACredentialIsOfItsConnectionOnly) {
  const auto a = counting_from(0);
  const auto b = counting_from(1);
  const std::string contents = credential_contents("secret", a, b);
  EXPECT_EQ(secret_in(contents, a, b), "secret");
  EXPECT_EQ(secret_in(contents, b, a), std::nullopt);
  EXPECT_EQ(secret_in(contents, a, a), std::nullopt);
  EXPECT_EQ(secret_in("", a, b), std::nullopt);
  EXPECT_EQ(secret_in(credential_contents("", a, b), a, b), std::nullopt) << "there is no secret";
}

TEST(Token, NoncesDiffer) {
  const auto nonce = random_nonce();
  EXPECT_NE(nonce, random_nonce());
  EXPECT_NE(nonce, wire::Nonce{});
}

TEST(Token, EqualityIsOfEveryByteAndTheLength) {
  const std::string proof = proof_of(ProofOf::kAgent, "token", {}, {});
  EXPECT_TRUE(are_equal(proof, proof));
  EXPECT_TRUE(are_equal("", ""));
  EXPECT_FALSE(are_equal("", proof));
  EXPECT_FALSE(are_equal(proof.substr(1), proof));
  EXPECT_FALSE(are_equal(proof + '\0', proof));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    std::string other = proof;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(are_equal(other, proof)) << i;
  }
}

// ---- the file

class TokenFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "token_test.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string written(const std::string& contents, mode_t mode = 0600) const {
    const std::string path = folder_ / "token";
    std::ofstream(path) << contents;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  static void expect_refused(const std::string& path, ErrorCode code, const std::string& why) {
    const auto token = read_token(path);
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code, code);
    EXPECT_THAT(token.error().message, HasSubstr("the token file " + path));
    EXPECT_THAT(token.error().message, HasSubstr(why));
  }

  std::filesystem::path folder_;
};

TEST_F(TokenFile, HoldsTheTokenWithoutWhiteSpaceAtItsEnd) {
  EXPECT_EQ(read_token(written("secret")), "secret");
  EXPECT_EQ(read_token(written("secret\n")), "secret");
  EXPECT_EQ(read_token(written(" two words \r\n\t\n", 0400)), " two words");
  EXPECT_EQ(read_token(written(std::string(4096, 'x'))), std::string(4096, 'x'));
}

TEST_F(TokenFile, ThatIsAbsentIsRefused) {
  expect_refused(folder_ / "none", ErrorCode::kNotFound, "No such file");
}

TEST_F(TokenFile, ThatIsEmptyIsRefused) {
  expect_refused(written(""), ErrorCode::kInvalidArgument, "is empty; write a line");
  expect_refused(written(" \n\t\r\n"), ErrorCode::kInvalidArgument, "is empty; write a line");
}

TEST_F(TokenFile, ThatIsTooLargeIsRefused) {
  expect_refused(written(std::string(4097, 'x')), ErrorCode::kInvalidArgument,
                 "more than 4096 bytes");
  expect_refused(written(std::string(100'000, '\n')), ErrorCode::kInvalidArgument,
                 "more than 4096 bytes");
}

TEST_F(TokenFile, ThatOthersMayReadIsRefused) {
  for (const auto& [mode, in_words] :
       {std::pair<mode_t, std::string>{0644, "mode 644"}, {0640, "mode 640"}, {0602, "mode 602"}}) {
    const std::string path = written("secret", mode);
    expect_refused(path, ErrorCode::kPermissionDenied, in_words);
    expect_refused(path, ErrorCode::kPermissionDenied, "run chmod 600 " + path);
  }
}

TEST_F(TokenFile, ThatIsNoRegularFileIsRefused) {
  expect_refused(folder_, ErrorCode::kInvalidArgument, "is no regular file");
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, ErrorCode::kInvalidArgument, "is no regular file");
}

TEST_F(TokenFile, IsMadeNewAndForItsOwnerOnly) {
  const std::string path = folder_ / "made";
  ::umask(0);
  ASSERT_TRUE(make_token(path));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto token = read_token(path);
  ASSERT_TRUE(token);
  EXPECT_EQ(token->size(), 44u) << "32 bytes in base64";
  const auto again = make_token(path);
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("is there already"));
  EXPECT_EQ(read_token(path), *token);
  ASSERT_TRUE(make_token(folder_ / "another"));
  EXPECT_NE(read_token(folder_ / "another"), *token);
  EXPECT_THAT(make_token(folder_ / "no/such/folder").error().message, HasSubstr("no/such/folder"));
}

// In a mount namespace of its own, on a thread of its own.
TEST_F(TokenFile, OfAMountedSecretIsReadWhateverItsMode) {
  const std::string secret = folder_ / "secret";
  const std::string file = secret + "/token";
  std::filesystem::create_directory(secret);
  std::string obstacle;
  Result<std::string> writable = std::string();
  Result<std::string> read_only = std::string();
  std::thread([&] {
    const bool is_mounted = ::unshare(CLONE_NEWNS | CLONE_FS) == 0 &&
                            ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                            ::mount("tmpfs", secret.c_str(), "tmpfs", 0, nullptr) == 0;
    if (!is_mounted) {
      obstacle = std::strerror(errno);
      return;
    }
    std::ofstream(file) << "secret\n";
    std::filesystem::permissions(file, std::filesystem::perms(0644));
    writable = read_token(file);
    ::mount(nullptr, secret.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr);
    read_only = read_token(file);
  }).join();
  if (!obstacle.empty()) GTEST_SKIP() << "nothing can be mounted here: " << obstacle;
  ASSERT_FALSE(writable);
  EXPECT_THAT(writable.error().message, HasSubstr("chmod 600"));
  EXPECT_EQ(read_only, "secret");
}

}  // namespace
}  // namespace ddprun::rdzv
