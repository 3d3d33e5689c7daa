/* A libnvidia-ml.so.1 without a GPU: answers from a text file that is read again at every call.
 *
 * OUTLAST_FAKE_NVML names the file. Each line is "key value":
 *   driver_version 580.95.05
 *   gpu.3.bus_id 0000:4d:00.0          values by GPU index; gpu.*.key for all, the specific one wins
 *   gpu.3.field.230 1                  a field value; gpu.3.field.230.ret 3 is its own return code
 *   call.nvmlDeviceGetUUID.3 hang      what a call does before it answers; without .3 for every GPU
 * Actions: ret:N  sleep:MS  hang  spin  abort  segv  dstate:PATH  stdout:TEXT
 * A value that the file does not have is NVML_ERROR_NOT_SUPPORTED (3).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };

static int initialised;

static int look_up(const char *key, char *value, size_t size) {
    const char *path = getenv("OUTLAST_FAKE_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[1024];
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

static int of_gpu(int gpu, const char *what, char *value, size_t size) {
    char key[128];
    snprintf(key, sizeof key, "gpu.%d.%s", gpu, what);
    if (look_up(key, value, size)) return 1;
    snprintf(key, sizeof key, "gpu.*.%s", what);
    return look_up(key, value, size);
}

static int number(int gpu, const char *what, long long *out) {
    char value[64];
    if (!of_gpu(gpu, what, value, sizeof value)) return NOT_SUPPORTED;
    *out = strtoll(value, NULL, 0);
    return OK;
}

static int text(int gpu, const char *what, char *out, unsigned size) {
    char value[256];
    if (!of_gpu(gpu, what, value, sizeof value)) return NOT_SUPPORTED;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

/* What the script has this call do; the return code it must give, or OK to go on. */
static int act(const char *call, int gpu) {
    char key[128], action[512];
    snprintf(key, sizeof key, "call.%s.%d", call, gpu);
    if (!look_up(key, action, sizeof action)) {
        snprintf(key, sizeof key, "call.%s", call);
        if (!look_up(key, action, sizeof action)) return OK;
    }
    if (!strncmp(action, "ret:", 4)) return atoi(action + 4);
    if (!strcmp(action, "hang")) for (;;) pause();
    if (!strcmp(action, "spin")) for (volatile int i = 0;; i++) ;
    if (!strcmp(action, "abort")) abort();
    if (!strcmp(action, "segv")) *(volatile int *)8 = 1;
    if (!strncmp(action, "sleep:", 6)) {
        long ms = atol(action + 6);
        struct timespec pause_for = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&pause_for, NULL);
    }
    /* On a frozen file system creating a file sleeps where no signal reaches. */
    if (!strncmp(action, "dstate:", 7)) close(open(action + 7, O_CREAT | O_WRONLY, 0600));
    if (!strncmp(action, "stdout:", 7)) { printf("%s\n", action + 7); fflush(stdout); }
    return OK;
}

#define ENTER(gpu) \
    int entered = act(__func__, gpu); \
    if (entered) return entered; \
    if (!initialised) return UNINITIALIZED
#define GPU(handle) ((int)(intptr_t)(handle) - 1)

int nvmlInitWithFlags(unsigned flags) {
    int entered = act(__func__, -1);
    (void)flags;
    if (!entered) initialised = 1;
    return entered;
}
int nvmlShutdown(void) { ENTER(-1); initialised = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "scripted"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char value[80] = "0";
    ENTER(-1);
    look_up("driver_version", value, sizeof value);
    snprintf(out, size, "%s", value);
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    char value[64], count[16] = "0";
    look_up("gpus", count, sizeof count);
    for (int gpu = 0; gpu < atoi(count); gpu++) {
        if (!of_gpu(gpu, "bus_id", value, sizeof value) || strcasecmp(value, bus_id)) continue;
        ENTER(gpu);
        *handle = (void *)(intptr_t)(gpu + 1);
        return OK;
    }
    return NOT_FOUND;
}

#define TEXT_CALL(name, what) \
    int name(void *h, char *out, unsigned size) { ENTER(GPU(h)); return text(GPU(h), what, out, size); }
#define NUMBER_CALL(name, what, type) \
    int name(void *h, type *out) { \
        long long v = 0; ENTER(GPU(h)); \
        int ret = number(GPU(h), what, &v); \
        if (!ret) *out = (type)v; \
        return ret; }

TEXT_CALL(nvmlDeviceGetUUID, "uuid")
TEXT_CALL(nvmlDeviceGetSerial, "serial")
TEXT_CALL(nvmlDeviceGetName, "name")
NUMBER_CALL(nvmlDeviceGetPersistenceMode, "persistence", unsigned)
NUMBER_CALL(nvmlDeviceGetCurrentClocksEventReasons, "clocks_event_reasons", unsigned long long)

int nvmlDeviceGetIndex(void *h, unsigned *out) { ENTER(GPU(h)); *out = (unsigned)GPU(h); return OK; }

int nvmlDeviceGetTotalEccErrors(void *h, int kind, int counter, unsigned long long *out) {
    long long v = 0; ENTER(GPU(h));
    int ret = number(GPU(h), kind == 1 && counter == 0 ? "ecc_uncorrected_volatile" : "ecc_other", &v);
    *out = (unsigned long long)v;
    return ret;
}

int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *out) {
    long long v = 0; ENTER(GPU(h)); (void)sensor;
    int ret = number(GPU(h), "temperature", &v);
    *out = (unsigned)v;
    return ret;
}
typedef struct { unsigned version; int sensor; int temperature; } Temperature;
int nvmlDeviceGetTemperatureV(void *h, Temperature *t) {
    long long v = 0; ENTER(GPU(h));
    if (t->version != 0x100000C) return VERSION_MISMATCH;
    int ret = number(GPU(h), "temperature", &v);
    t->temperature = (int)v;
    return ret;
}

int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    long long v = 0; ENTER(GPU(h));
    int ret = number(GPU(h), "mig", &v);
    *current = *pending = (unsigned)v;
    return ret;
}

int nvmlDeviceGetRemappedRows(void *h, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    long long c = 0, u = 0, p = 0, f = 0; ENTER(GPU(h));
    number(GPU(h), "remapped_corrected", &c); number(GPU(h), "remapped_uncorrected", &u);
    int ret = number(GPU(h), "remap_pending", &p) | number(GPU(h), "remap_failed", &f);
    *corr = (unsigned)c; *unc = (unsigned)u; *pending = (unsigned)p; *failed = (unsigned)f;
    return ret;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *m) {
    long long total = 0, used = 0; ENTER(GPU(h));
    if (m->version != 0x2000028) return VERSION_MISMATCH;
    int ret = number(GPU(h), "memory_total", &total);
    number(GPU(h), "memory_used", &used);
    m->total = (unsigned long long)total; m->used = (unsigned long long)used;
    m->free = m->total - m->used;
    return ret;
}

typedef struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type; int32_t ret;
                 union { double d; long long ll; unsigned u; } value; } FieldValue;
int nvmlDeviceGetFieldValues(void *h, int count, FieldValue *values) {
    ENTER(GPU(h));
    for (int i = 0; i < count; i++) {
        char what[40];
        long long v = 0, ret = 0;
        snprintf(what, sizeof what, "field.%u.ret", values[i].field);
        number(GPU(h), what, &ret);
        snprintf(what, sizeof what, "field.%u", values[i].field);
        if (!ret) ret = number(GPU(h), what, &v);
        values[i].ret = (int32_t)ret;
        values[i].type = 1;
        values[i].value.ll = ret ? 0 : v;   /* as the real one: an unsupported field holds 0 */
    }
    return OK;
}

typedef struct { unsigned version; unsigned long long counts[11]; unsigned threshold_exceeded; } Sram;
int nvmlDeviceGetSramEccErrorStatus(void *h, Sram *s) {
    long long v = 0; ENTER(GPU(h));
    if (s->version != 0x1000068) return VERSION_MISMATCH;
    int ret = number(GPU(h), "sram_threshold_exceeded", &v);
    s->threshold_exceeded = (unsigned)v;
    return ret;
}

typedef struct { unsigned version; uint8_t uuid[16]; int status; uint32_t clique; uint8_t state;
                 uint32_t mask; uint8_t summary; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *f) {
    long long state = 0, summary = 0, newest = 3; ENTER(GPU(h));
    number(GPU(h), "fabric_version", &newest);
    if (f->version != 0x2000024 && !(f->version == 0x3000028 && newest >= 3)) return VERSION_MISMATCH;
    int ret = number(GPU(h), "fabric_state", &state);
    f->state = (uint8_t)state;
    if (f->version == 0x3000028 && !number(GPU(h), "fabric_summary", &summary)) f->summary = (uint8_t)summary;
    return ret;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, Process *out) {
    char pids[256], *at = pids;
    unsigned n = 0;
    ENTER(GPU(h));
    if (!of_gpu(GPU(h), "process_ids", pids, sizeof pids)) return NOT_SUPPORTED;
    for (char *word; (word = strsep(&at, ",")); ) if (*word) {
        if (out && n < *count) out[n] = (Process){(unsigned)atoi(word), 0, ~0u, ~0u};
        n++;
    }
    int ret = n > (out ? *count : 0) ? INSUFFICIENT_SIZE : OK;
    *count = n;
    return ret;
}
