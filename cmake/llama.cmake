# llama.cpp as a static library inside our build. Options already set by the user (CMAKE_ARGS) win.
set(LLAMASERVE_LLAMA_DIR "${PROJECT_SOURCE_DIR}/vendor/llama.cpp")
if(NOT EXISTS "${LLAMASERVE_LLAMA_DIR}/CMakeLists.txt")
  message(FATAL_ERROR "vendor/llama.cpp is missing: run 'python vendor/fetch.py' first")
endif()

set(BUILD_SHARED_LIBS OFF CACHE BOOL "one self-contained extension module")
set(LLAMA_BUILD_COMMON ON CACHE BOOL "chat templates live in common/")
set(LLAMA_BUILD_TOOLS OFF CACHE BOOL "")
set(LLAMA_BUILD_EXAMPLES OFF CACHE BOOL "")
set(LLAMA_BUILD_TESTS OFF CACHE BOOL "")
set(LLAMA_BUILD_SERVER OFF CACHE BOOL "")
set(LLAMA_BUILD_APP OFF CACHE BOOL "")
set(LLAMA_OPENSSL OFF CACHE BOOL "models are fetched by Python, never by llama.cpp")
set(GGML_NATIVE ON CACHE BOOL "tuned for the machine that builds; OFF for a wheel that travels")

set(LLAMA_SUBPROCESS OFF CACHE BOOL "the library starts no processes")

# The sdist has no git history; llama.cpp's own build info comes from the pin.
file(STRINGS "${PROJECT_SOURCE_DIR}/vendor/llama-cpp-python.lock" LLAMASERVE_PIN REGEX "^# llama.cpp-commit: ")
string(REPLACE "# llama.cpp-commit: " "" LLAMA_BUILD_COMMIT "${LLAMASERVE_PIN}")
set(LLAMA_BUILD_NUMBER 0)

# llama.cpp asks git for its commit; the history around the unpacked source is not its own, so it gets no answer.
find_program(LLAMASERVE_NO_GIT false REQUIRED)
set(GIT_EXECUTABLE "${LLAMASERVE_NO_GIT}" CACHE FILEPATH "" FORCE)
set(GIT_EXE "${LLAMASERVE_NO_GIT}" CACHE FILEPATH "" FORCE)

add_subdirectory("${LLAMASERVE_LLAMA_DIR}" "${CMAKE_BINARY_DIR}/llama.cpp" EXCLUDE_FROM_ALL)

# GCC 12 warns thousands of times of its own AVX-512 header; nobody here can act on warnings of a backend.
if(TARGET ggml-cpu AND NOT MSVC)
  target_compile_options(ggml-cpu PRIVATE -w)
endif()

# A compiler that miscompiles AMX set-up makes ggml trap at the first prompt on a processor that has it. Each try runs
# the set-up: as it is, with a header that repairs it, and if neither works the backend is built without AMX.
if(GGML_NATIVE AND TARGET ggml-cpu AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING AND NOT MSVC)
  set(LLAMASERVE_AMX_TILES "-include" "${PROJECT_SOURCE_DIR}/cmake/amx_tiles.h")
  try_run(LLAMASERVE_AMX_PLAIN_RUN LLAMASERVE_AMX_PLAIN_COMPILES
    SOURCES "${PROJECT_SOURCE_DIR}/cmake/amx_check.cpp"
    COMPILE_DEFINITIONS -O3 -march=native)
  if(NOT LLAMASERVE_AMX_PLAIN_COMPILES OR NOT LLAMASERVE_AMX_PLAIN_RUN EQUAL 0)
    try_run(LLAMASERVE_AMX_REPAIRED_RUN LLAMASERVE_AMX_REPAIRED_COMPILES
      SOURCES "${PROJECT_SOURCE_DIR}/cmake/amx_check.cpp"
      COMPILE_DEFINITIONS -O3 -march=native ${LLAMASERVE_AMX_TILES})
    if(LLAMASERVE_AMX_REPAIRED_COMPILES AND LLAMASERVE_AMX_REPAIRED_RUN EQUAL 0)
      message(STATUS "AMX tiles are set up by cmake/amx_tiles.h: this compiler drops a part of it")
      target_compile_options(ggml-cpu PRIVATE "SHELL:-include \"${PROJECT_SOURCE_DIR}/cmake/amx_tiles.h\"")
    else()
      message(STATUS "AMX is left out: this compiler does not set up its tiles correctly")
      target_compile_options(ggml-cpu PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
    endif()
  endif()
endif()
