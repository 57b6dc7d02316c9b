// Part of the declarations of Gloo that LibTorch's ProcessGroupGloo.hpp asks for (context.h says why): nothing of this
// header is used.
#pragma once
