/*
 * trace_file.c - reading a trace: JSON lines, zstd-compressed or plain.
 *
 * A line is an object; the members that count are
 *
 *     input_length | input_toks         tokens of the prompt          (wanted)
 *     hash_ids                          ids of its blocks             (this or the next)
 *     input_tok_ids                     its token ids
 *     timestamp (ms) | arrival_time_ns  output_length | output_toks   session
 *
 * Files of tens of millions of ids are usual, and building a JSON tree of each line takes ten times
 * as long as all else.  So a small scanner reads flat objects of numbers and arrays of integers;
 * the first thing that it does not know in a line makes it give the line to jansson, which also
 * says what is wrong with a line that is no JSON.  Both end in the same setters.
 */
#include "clients/replay/trace.h"

#include "clients/replay/util.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define CHUNK ((size_t)1 << 20)

enum field {
	FIELD_INPUT,
	FIELD_OUTPUT,
	FIELD_SESSION,
	FIELD_TIME_MS,
	FIELD_TIME_NS,
	FIELD_IDS,
	FIELD_TOKENS,
	FIELD_OTHER
};

static const struct {
	const char *name;
	enum field field;
} fields[] = {
	{ "input_length", FIELD_INPUT },      { "input_toks", FIELD_INPUT },
	{ "output_length", FIELD_OUTPUT },    { "output_toks", FIELD_OUTPUT },
	{ "session", FIELD_SESSION },         { "timestamp", FIELD_TIME_MS },
	{ "arrival_time_ns", FIELD_TIME_NS }, { "hash_ids", FIELD_IDS },
	{ "input_tok_ids", FIELD_TOKENS },
};

struct reader {
	const char *path;
	struct replay_trace *trace;
	size_t limit;
	size_t line_no;
	char *line; /* what was read and not yet parsed */
	size_t line_len, line_cap;
};

static enum field field_of(const char *name, size_t len)
{
	for (size_t i = 0; i < replay_array_size(fields); i++)
		if (strlen(fields[i].name) == len && memcmp(fields[i].name, name, len) == 0)
			return fields[i].field;
	return FIELD_OTHER;
}

static void set_number(struct replay_request *request, enum field field, uint64_t value)
{
	switch (field) {
	case FIELD_INPUT:
		request->input_tokens = value;
		break;
	case FIELD_OUTPUT:
		request->output_tokens = (uint32_t)value;
		break;
	case FIELD_SESSION:
		request->session = (uint32_t)value;
		break;
	case FIELD_TIME_MS:
		request->time_us = value * 1000;
		break;
	case FIELD_TIME_NS:
		request->time_us = value / 1000;
		break;
	case FIELD_IDS:
	case FIELD_TOKENS:
	case FIELD_OTHER:
		break;
	}
}

static void add_element(struct replay_trace *trace, enum field field, uint64_t value)
{
	if (field == FIELD_IDS)
		replay_trace_add_block(trace, value);
	else if (field == FIELD_TOKENS)
		replay_trace_add_token(trace, (uint32_t)value);
}

/* ---- the scanner: false means "not my kind of line", with nothing of it to be kept ----------- */

static const char *skip_space(const char *p)
{
	while (*p == ' ' || *p == '\t' || *p == '\r')
		p++;
	return p;
}

static bool scan_integer(const char **p, uint64_t *ret_value)
{
	const char *s = *p;
	uint64_t value = 0;

	while (*s >= '0' && *s <= '9' && value < UINT64_MAX / 10 - 1)
		value = value * 10 + (uint64_t)(*s++ - '0');
	if (s == *p || *s == '.' || *s == 'e' || *s == 'E' || (*s >= '0' && *s <= '9'))
		return false;
	*p = s;
	*ret_value = value;
	return true;
}

static bool scan_array(const char **p, struct replay_trace *trace, enum field field)
{
	const char *s = skip_space(*p + 1);
	uint64_t value;

	while (*s != ']') {
		if (!scan_integer(&s, &value))
			return false;
		add_element(trace, field, value);
		s = skip_space(s);
		if (*s == ',')
			s = skip_space(s + 1);
		else if (*s != ']')
			return false;
	}
	*p = s + 1;
	return true;
}

static bool scan_member(const char **p, struct replay_trace *trace, struct replay_request *request)
{
	const char *name = *p + 1;
	const char *s = strchr(name, '"');
	enum field field;
	uint64_t value;

	if (**p != '"' || !s)
		return false;
	field = field_of(name, (size_t)(s - name));
	s = skip_space(s + 1);
	if (*s != ':')
		return false;
	s = skip_space(s + 1);
	if (*s == '[') {
		if (!scan_array(&s, trace, field))
			return false;
	} else {
		if (!scan_integer(&s, &value))
			return false;
		set_number(request, field, value);
	}
	*p = skip_space(s);
	return true;
}

static bool scan_line(const char *line, struct replay_trace *trace, struct replay_request *request)
{
	const char *p = skip_space(line);

	if (*p != '{')
		return false;
	p = skip_space(p + 1);
	for (;;) {
		if (!scan_member(&p, trace, request))
			return false;
		if (*p == '}')
			break;
		if (*p != ',')
			return false;
		p = skip_space(p + 1);
	}
	return *skip_space(p + 1) == '\0';
}

/* ---- jansson: every other line --------------------------------------------------------------- */

static int say_line(const struct reader *in, const char *what, const char *name)
{
	replay_say("%s:%zu: %s%s%s", in->path, in->line_no, what, name ? " " : "",
		   name ? name : "");
	return -EINVAL;
}

static int tree_array(struct reader *in, const char *name, enum field field, const json_t *array)
{
	const json_t *element;
	size_t i;

	json_array_foreach(array, i, element)
	{
		if (!json_is_integer(element) || json_integer_value(element) < 0)
			return say_line(in, "only integers from 0 on may be in", name);
		add_element(in->trace, field, (uint64_t)json_integer_value(element));
	}
	return 0;
}

static int tree_member(struct reader *in, struct replay_request *request, const char *name,
		       const json_t *value)
{
	enum field field = field_of(name, strlen(name));
	double number;

	if (field == FIELD_OTHER)
		return 0;
	if (field == FIELD_IDS || field == FIELD_TOKENS)
		return json_is_array(value) ? tree_array(in, name, field, value)
					    : say_line(in, "not an array:", name);
	number = json_is_number(value) ? json_number_value(value) : -1.0;
	if (number < 0 || number >= 0x1p63)
		return say_line(in, "not a number from 0 on:", name);
	set_number(request, field, (uint64_t)number);
	return 0;
}

static int tree_line(struct reader *in, struct replay_request *request)
{
	json_error_t error;
	json_t *tree = json_loads(in->line, 0, &error);
	const char *name;
	json_t *value;
	int r = 0;

	if (!tree)
		return say_line(in, "not JSON:", error.text);
	if (!json_is_object(tree))
		r = say_line(in, "not a JSON object", NULL);
	else
		json_object_foreach(tree, name, value)
		{
			r = tree_member(in, request, name, value);
			if (r < 0)
				break;
		}
	json_decref(tree);
	return r;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* One complete, terminated line is in `in->line`. */
static int take_line(struct reader *in)
{
	struct replay_trace *trace = in->trace;
	struct replay_request *request;
	size_t n_refs = trace->n_refs;
	size_t n_tokens = trace->n_tokens;
	size_t n_conflicts = trace->n_conflicts;

	in->line_no++;
	if (*skip_space(in->line) == '\0')
		return 0;
	request = replay_trace_begin(trace);
	if (!scan_line(in->line, trace, request)) {
		int r;

		/* Numbers that the scanner gave to new blocks stay; the tree names them again. */
		trace->n_refs = n_refs;
		trace->n_tokens = n_tokens;
		trace->n_conflicts = n_conflicts;
		*request = (struct replay_request){ .first_block = n_refs,
						    .first_token = n_tokens };
		r = tree_line(in, request);
		if (r < 0)
			return r;
	}
	if (trace->n_tokens > n_tokens) {
		if (request->n_blocks)
			return say_line(in, "has both hash_ids and input_tok_ids", NULL);
		request->input_tokens = trace->n_tokens - n_tokens;
		replay_trace_end_tokens(trace);
	}
	if (!request->input_tokens)
		return say_line(in, "no input_length (or input_toks)", NULL);
	if (request->n_blocks > (request->input_tokens - 1) / trace->block_tokens + 1)
		return say_line(
			in, "more hash_ids than input_length has blocks; is --block-tokens right?",
			NULL);
	return 0;
}

static bool is_full(const struct reader *in)
{
	return in->limit && in->trace->n_requests >= in->limit;
}

/* Appends decompressed bytes and takes every line that is complete. */
static int take_bytes(struct reader *in, const char *bytes, size_t len)
{
	while (len && !is_full(in)) {
		const char *end = memchr(bytes, '\n', len);
		size_t n = end ? (size_t)(end - bytes) : len;
		int r;

		in->line = replay_grow(in->line, &in->line_cap, in->line_len + n + 1, 1);
		memcpy(in->line + in->line_len, bytes, n);
		in->line_len += n;
		if (!end)
			return 0;
		in->line[in->line_len] = '\0';
		in->line_len = 0;
		r = take_line(in);
		if (r < 0)
			return r;
		bytes += n + 1;
		len -= n + 1;
	}
	return 0;
}

static int read_zstd(struct reader *in, FILE *file, char *raw, size_t raw_len)
{
	ZSTD_DStream *stream = ZSTD_createDStream();
	char *out = replay_alloc(CHUNK, 1);
	size_t state = 1; /* 0 at the end of a frame */
	int r = stream ? 0 : -ENOMEM;

	while (r == 0 && raw_len && !is_full(in)) {
		ZSTD_inBuffer src = { raw, raw_len, 0 };

		while (r == 0 && src.pos < src.size && !is_full(in)) {
			ZSTD_outBuffer dst = { out, CHUNK, 0 };

			state = ZSTD_decompressStream(stream, &dst, &src);
			if (ZSTD_isError(state)) {
				replay_say("%s: broken zstd data: %s", in->path,
					   ZSTD_getErrorName(state));
				r = -EINVAL;
			} else {
				r = take_bytes(in, out, dst.pos);
			}
		}
		raw_len = r == 0 ? fread(raw, 1, CHUNK, file) : 0;
	}
	/* What is left inside the stream when the last output buffer was full. */
	while (r == 0 && state != 0 && !is_full(in)) {
		ZSTD_inBuffer src = { NULL, 0, 0 };
		ZSTD_outBuffer dst = { out, CHUNK, 0 };

		state = ZSTD_decompressStream(stream, &dst, &src);
		if (ZSTD_isError(state) || dst.pos == 0) {
			replay_say("%s: the zstd data ends early", in->path);
			r = -EINVAL;
		} else {
			r = take_bytes(in, out, dst.pos);
		}
	}
	free(out);
	ZSTD_freeDStream(stream);
	return r;
}

static int read_all(struct reader *in, FILE *file)
{
	static const unsigned char magic[4] = { 0x28, 0xb5, 0x2f, 0xfd };
	char *raw = replay_alloc(CHUNK, 1);
	size_t n = fread(raw, 1, CHUNK, file);
	int r = 0;

	if (n >= sizeof(magic) && memcmp(raw, magic, sizeof(magic)) == 0)
		r = read_zstd(in, file, raw, n);
	else
		while (r == 0 && n && !is_full(in)) {
			r = take_bytes(in, raw, n);
			n = fread(raw, 1, CHUNK, file);
		}
	if (r == 0 && ferror(file)) {
		replay_say("%s: %s", in->path, strerror(errno));
		r = -EIO;
	}
	if (r == 0 && in->line_len && !is_full(in))
		r = take_bytes(in, "\n", 1); /* a last line without an end */
	free(raw);
	return r;
}

/* Too few ids are legal (the rest of a prompt may have none), but mostly mean a wrong size. */
static void warn_of_sparse_ids(const struct reader *in)
{
	const struct replay_trace *trace = in->trace;
	size_t n = 0;

	for (size_t i = 0; i < trace->n_requests; i++)
		n += trace->requests[i].n_blocks + 1 <
		     trace->requests[i].input_tokens / trace->block_tokens;
	if (n > trace->n_requests / 2)
		replay_say(
			"%s: %zu of %zu prompts have fewer hash_ids than blocks of %u tokens; is "
			"--block-tokens right?",
			in->path, n, trace->n_requests, trace->block_tokens);
}

int replay_trace_load(const char *path, uint32_t block_tokens, size_t limit,
		      struct replay_trace **ret_trace)
{
	struct reader in = { .path = path, .limit = limit };
	FILE *file = fopen(path, "re");
	int r;

	if (!file) {
		r = -errno;
		replay_say("cannot open the trace %s: %s", path, strerror(errno));
		return r;
	}
	in.trace = replay_trace_new(path, block_tokens);
	r = read_all(&in, file);
	(void)fclose(file); /* opened for reading only */
	free(in.line);
	if (r == 0 && !in.trace->n_requests) {
		replay_say("%s: no request in it", path);
		r = -EINVAL;
	}
	if (r < 0) {
		replay_trace_free(in.trace);
		return r;
	}
	warn_of_sparse_ids(&in);
	*ret_trace = in.trace;
	return 0;
}
