package tenant

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// The table is for people. The CSV has exact numbers and parses again.
func TestABillAsATableAndAsCSV(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	lines := []pando.BillLine{{Tenant: "acme", From: at, To: at.AddDate(0, 1, 0), Work: pando.Work{
		InstanceSeconds: 5400.5, CPUSeconds: 36, BytesIn: 1 << 40, BytesOut: 3, Decisions: 12}}}
	var out bytes.Buffer
	billColumns(&out, lines)
	for _, want := range []string{"TENANT", "acme", "1.500", "0.0100", "1.0T", "3B", "12"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	billColumns(&out, nil)
	if out.String() != "no work\n" {
		t.Errorf("empty: %q", out.String())
	}
	out.Reset()
	billTable(&out, lines)
	all, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(all) != 2 || strings.Join(all[1], ",") !=
		"acme,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,5400.500,36.000,1099511627776,3,12" {
		t.Errorf("%v, %v", all, err)
	}
}
