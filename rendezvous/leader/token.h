// A secret that the nodes of a job share: an agent proves to the leader that it knows the token
// without sending it, by an HMAC-SHA256 over both sides' nonces; the leader proves the same. This
// covers the round protocol only: c10d's store protocol has no authentication. Free functions; any
// thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/result.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {

enum class ProofOf { kAgent, kLeader };  // so that neither side's proof can be sent back to it

// The contents of the file without white space at the end. An empty file, one that other users may
// access (mode & 077; not asked of a file in a tmpfs that is mounted read-only, as Kubernetes mounts
// secrets), one of more than 4 KiB, and anything but a regular file are refused with a sentence that
// says what to change.
Result<std::string> read_token(const std::string& path);
// The same for another secret, "password".
Result<std::string> read_secret(const std::string& name, const std::string& path);

// Writes 32 random bytes as a line of base64 to a new file of mode 600. A file that is there stays as
// it is, and is an Error.
Result<void> make_token(const std::string& path);

wire::Nonce random_nonce();

// HMAC-SHA256 under the token, of "ddprun agent" or "ddprun leader" (whose proof it is), the agent's
// nonce and the leader's: 32 bytes.
std::string proof_of(ProofOf side, std::string_view token, const wire::Nonce& agent,
                     const wire::Nonce& leader);
// What an agent puts into its credential (node_proof.h), and the secret in one that was made for
// these nonces; nullopt: it was not.
std::string credential_contents(std::string_view secret, const wire::Nonce& agent,
                                const wire::Nonce& leader);
std::optional<std::string> secret_in(std::string_view contents, const wire::Nonce& agent,
                                     const wire::Nonce& leader);

// Compares in a time that does not depend on where they differ.
bool are_equal(std::string_view proof, std::string_view expected);

}  // namespace ddprun::rdzv
