package unit

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"strings"

	"pando.run/pando"
)

// linesMax is the number of lines that a dead unit's report contains.
const linesMax = 10

// lastWords reads the part of the log since the unit began. It returns the last lines that are not
// JSON events, and the account that a unit writes at an orderly end.
func (p *process) lastWords() (lines []string, account *pando.UnitStatus) {
	file, err := os.Open(p.driver.logFile())
	if err != nil {
		return nil, nil
	}
	defer file.Close()
	read := bufio.NewScanner(io.NewSectionReader(file, p.logged, 1<<62))
	read.Buffer(nil, 1<<20)
	for read.Scan() {
		line := read.Text()
		if !strings.HasPrefix(line, "{") {
			lines = append(lines[max(0, len(lines)+1-linesMax):], line)
			continue
		}
		if !strings.HasPrefix(line, `{"name":`) {
			continue
		}
		s := &pando.UnitStatus{}
		if json.Unmarshal([]byte(line), s) == nil && s.Name == p.Name() {
			account = s
		}
	}
	return lines, account
}
