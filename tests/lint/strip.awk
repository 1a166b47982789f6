# strip.awk - C sources as "file:line:code", comments and the insides of literals blanked out, so
# that a search for code finds code only.

FNR == 1 { comment = 0 }

{
	out = ""
	line = $0
	while (line != "") {
		if (comment) {
			at = index(line, "*/")
			if (!at)
				break
			line = substr(line, at + 2)
			comment = 0
			out = out " "
			continue
		}
		if (!match(line, /["']|\/\*|\/\//)) {
			out = out line
			break
		}
		out = out substr(line, 1, RSTART - 1)
		token = substr(line, RSTART, RLENGTH)
		line = substr(line, RSTART + RLENGTH)
		if (token == "//")
			break
		if (token == "/*") {
			comment = 1
			continue
		}
		out = out token token
		while (line != "") {
			c = substr(line, 1, 1)
			line = substr(line, c == "\\" ? 3 : 2)
			if (c == token)
				break
		}
	}
	print FILENAME ":" FNR ":" out
}
