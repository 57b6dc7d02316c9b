# cmake -DFILE=… -P relocate.cmake: a program that looks for libraries where it was built looks in ../lib, wherever it
# is copied to.
file(READ_ELF ${FILE} RPATH rpath RUNPATH runpath CAPTURE_ERROR none)
if(rpath OR runpath)
  file(RPATH_SET FILE ${FILE} NEW_RPATH "$ORIGIN/../lib")
endif()
