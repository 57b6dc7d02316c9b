# Writes OUTPUT, a C++ source with the bytes of INPUT as ddprun::agent::kPage.
#
#   cmake -DINPUT=<file> -DOUTPUT=<source> -P embed.cmake
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
string(REGEX REPLACE "(('[^']*',){20})" "\\1\n" bytes "${bytes}")
file(WRITE "${OUTPUT}" "#include \"agent/dashboard/page.h\"

namespace ddprun::agent {
namespace {
constexpr char kBytes[] = {
${bytes}
};
}  // namespace
const std::string_view kPage(kBytes, sizeof kBytes);
}  // namespace ddprun::agent
")
