/* A libcuda.so.1 without a GPU: device memory is host memory, and what goes wrong is in a text file.
 *
 * OUTLAST_FAKE_CUDA names the file, read again at every call. Each line is "key value":
 *   gpus 0000:10:1c.0,0000:20:1c.0      PCI addresses, in order
 *   memory 67108864                     bytes of each
 *   gpu.1.stuck 4096:3                  this bit at this offset of an allocation reads as one
 *   gpu.1.wrap 1048576                  this address line is stuck at zero
 *   no_peer_access 1                    copies between devices go through the host
 *   call.cuMemcpyDtoH_v2.1 ret:700      what a call does first, on GPU 1; without .1 on every GPU
 * Actions: ret:N  sleep:MS  hang  segv  dstate:PATH  touch:PATH
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, MAX = 64 };
typedef uint64_t Pointer;

static struct { Pointer base; size_t size; int gpu; } allocations[MAX];
static size_t used[MAX];
static int initialised, current = -1;

static int look_up(const char *key, char *value, size_t size) {
    FILE *file = fopen(getenv("OUTLAST_FAKE_CUDA") ?: "", "re");
    char line[2048];
    size_t length = strlen(key);
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) || line[length] != ' ') continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + length + 1);
        found = 1;
    }
    if (file) fclose(file);
    return found;
}

static int act(const char *call, int gpu) {
    char key[128], action[512];
    snprintf(key, sizeof key, "call.%s.%d", call, gpu);
    if (!look_up(key, action, sizeof action)) {
        snprintf(key, sizeof key, "call.%s", call);
        if (!look_up(key, action, sizeof action)) return OK;
    }
    if (!strncmp(action, "ret:", 4)) return atoi(action + 4);
    if (!strcmp(action, "hang")) for (;;) pause();
    if (!strcmp(action, "segv")) raise(SIGSEGV);
    if (!strncmp(action, "sleep:", 6)) usleep((useconds_t)atol(action + 6) * 1000);
    if (!strncmp(action, "dstate:", 7) || !strncmp(action, "touch:", 6))
        close(open(strchr(action, ':') + 1, O_CREAT | O_WRONLY, 0600));
    return OK;
}

#define ENTER(gpu) \
    int entered = act(__func__, gpu); \
    if (entered) return entered; \
    if (!initialised) return NOT_INITIALIZED

static int owner(Pointer p) {
    for (int i = 0; i < MAX; i++)
        if (allocations[i].size && p >= allocations[i].base && p < allocations[i].base + allocations[i].size) return i;
    return -1;
}

/* Where an address really leads: an address line may be stuck. */
static char *place(Pointer p) {
    int i = owner(p);
    char key[32], value[32];
    if (i < 0) return NULL;
    size_t offset = p - allocations[i].base;
    snprintf(key, sizeof key, "gpu.%d.wrap", allocations[i].gpu);
    if (look_up(key, value, sizeof value)) offset &= ~strtoull(value, NULL, 0);
    return (char *)(uintptr_t)(allocations[i].base + offset);
}

/* What a read gives back: a bit may be stuck. */
static void spoil(Pointer from, char *data, size_t size) {
    int i = owner(from);
    char key[32], value[64];
    snprintf(key, sizeof key, "gpu.%d.stuck", allocations[i].gpu);
    if (!look_up(key, value, sizeof value)) return;
    size_t at = strtoull(value, NULL, 0), offset = from - allocations[i].base;
    if (at >= offset && at < offset + size) data[at - offset] |= (char)(1 << atoi(strchr(value, ':') + 1));
}

int cuInit(unsigned flags) {
    int entered = act(__func__, -1);
    (void)flags;
    if (!entered) initialised = 1;
    return entered;
}
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuGetErrorString(int code, const char **text) {
    *text = code == NO_MEMORY ? "out of memory" : code == 802 ? "system not yet initialized" : "scripted";
    return OK;
}

int cuDeviceGetByPCIBusId(int *device, const char *address) {
    char all[2048], *save = NULL, visible[1024] = "";
    ENTER(-1);
    if (!look_up("gpus", all, sizeof all)) return NO_DEVICE;
    snprintf(visible, sizeof visible, "%s", getenv("CUDA_VISIBLE_DEVICES") ?: "");
    int gpu = 0;
    for (char *one = strtok_r(all, ",", &save); one; one = strtok_r(NULL, ",", &save), gpu++) {
        char uuid[64];
        snprintf(uuid, sizeof uuid, "-%012d", gpu);
        if (strcmp(one, address)) continue;
        if (*visible && !strstr(visible, uuid)) return NO_DEVICE;
        *device = gpu;
        return OK;
    }
    return BAD_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { ENTER(device); *context = (void *)(intptr_t)(device + 1); return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { ENTER(device); return OK; }
int cuCtxSetCurrent(void *context) { ENTER((int)(intptr_t)context - 1); current = (int)(intptr_t)context - 1; return OK; }
int cuCtxSynchronize(void) { ENTER(current); return OK; }

static size_t total(void) {
    char value[32];
    return look_up("memory", value, sizeof value) ? strtoull(value, NULL, 0) : 0;
}
int cuMemGetInfo_v2(size_t *left, size_t *all) { ENTER(current); *all = total(); *left = *all - used[current]; return OK; }
int cuMemAlloc_v2(Pointer *p, size_t size) {
    ENTER(current);
    if (used[current] + size > total()) return NO_MEMORY;
    for (int i = 0; i < MAX; i++) {
        if (allocations[i].size) continue;
        *p = (Pointer)(uintptr_t)calloc(1, size);
        allocations[i].base = *p; allocations[i].size = size; allocations[i].gpu = current;
        used[current] += size;
        return OK;
    }
    return NO_MEMORY;
}
int cuMemFree_v2(Pointer p) {
    ENTER(current);
    int i = owner(p);
    if (i < 0) return INVALID;
    used[allocations[i].gpu] -= allocations[i].size;
    allocations[i].size = 0;
    free((void *)(uintptr_t)p);
    return OK;
}
int cuMemAllocHost_v2(void **p, size_t size) { ENTER(current); *p = malloc(size); return *p ? OK : NO_MEMORY; }
int cuMemFreeHost(void *p) { ENTER(current); free(p); return OK; }
int cuMemsetD32_v2(Pointer p, unsigned word, size_t count) {
    ENTER(current);
    uint32_t *to = (uint32_t *)place(p);
    if (!to) return INVALID;
    for (size_t i = 0; i < count; i++) to[i] = word;
    return OK;
}
int cuMemcpyHtoD_v2(Pointer to, const void *from, size_t size) {
    ENTER(current);
    char *where = place(to);
    if (!where) return INVALID;
    memcpy(where, from, size);
    return OK;
}
int cuMemcpyDtoH_v2(void *to, Pointer from, size_t size) {
    ENTER(current);
    char *where = place(from);
    if (!where) return INVALID;
    memcpy(to, where, size);
    spoil(from, to, size);
    return OK;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    char value[16];
    ENTER(device);
    *can = device != peer && !look_up("no_peer_access", value, sizeof value);
    return OK;
}
int cuCtxEnablePeerAccess(void *peer, unsigned flags) { ENTER(current); (void)flags; return peer ? OK : INVALID; }
int cuMemcpyPeer(Pointer to, void *to_context, Pointer from, void *from_context, size_t size) {
    ENTER((int)(intptr_t)to_context - 1);
    (void)from_context;
    char *target = place(to), *source = place(from);
    if (!target || !source) return INVALID;
    memcpy(target, source, size);
    return OK;
}
