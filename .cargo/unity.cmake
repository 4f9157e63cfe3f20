# How HiGHS is compiled, for the crate that builds it with CMake: several of its 218 sources at once. Half of the time of each is
# reading the same headers. The compilers are those that CMake finds.
set(CMAKE_UNITY_BUILD ON)
