/* libcuda, loaded at run time: no CUDA toolkit is needed to build what uses it. FUNCTIONS(F) lists
 * its functions as F(name, (arguments)), before this is included. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int result;
typedef uint64_t address;
enum { OUT_OF_MEMORY = 2 };

#define DECLARE(name, arguments) static result (*name) arguments;
FUNCTIONS(DECLARE)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void must(result code, const char *what) {
    const char *name = "?";
    if (!code) return;
    if (cuGetErrorName) cuGetErrorName(code, &name);
    printf("%s: %s\n", what, name);
    exit(code == OUT_OF_MEMORY ? 2 : 1);
}

static void load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) { printf("%s\n", dlerror()); exit(1); }
#define FIND(name, arguments) if (!(name = (result (*) arguments)dlsym(library, #name))) { printf("no %s\n", #name); exit(1); }
    FUNCTIONS(FIND)
}
