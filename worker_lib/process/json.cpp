// Boost.JSON for all of worker_lib: Debian's archive of it is not compiled for shared libraries, and a user's training may be in
// one.
#include <boost/json/src.hpp>
