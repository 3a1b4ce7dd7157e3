package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestAShareOfTheRequestsFails(t *testing.T) {
	f := newFaults(func(name string) string { return map[string]string{"FAIL": "0.05"}[name] })
	h := f.of(handler(0, "web-1"))
	failed := 0
	for range 100 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != http.StatusOK {
			failed++
		}
	}
	if failed != 5 || f.hurt.Load() != 5 {
		t.Errorf("%d of 100 requests failed, and %d count as bad, want 5", failed, f.hurt.Load())
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/live", nil))
	if w.Code != http.StatusOK || f.all.Load() != 100 {
		t.Errorf("a probe has %d and counts as request %d", w.Code, f.all.Load())
	}
}

func TestALateAnswerIsABadOne(t *testing.T) {
	f := newFaults(func(name string) string {
		return map[string]string{"SLEEP": "11", "LATE": "10"}[name]
	})
	began := time.Now()
	f.of(handler(0, "web-1")).ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequest(http.MethodGet, "/", nil))
	if took := time.Since(began); took <= f.late || f.share() != 1 {
		t.Errorf("an answer after %s gives a share of %g bad ones, want 1", took, f.share())
	}
}

func TestAProgramWithoutFaultsHasNone(t *testing.T) {
	f := newFaults(func(string) string { return "" })
	for n := range int64(1000) {
		if f.fails(n + 1) {
			t.Fatalf("request %d fails", n+1)
		}
	}
	if f.share() != 0 || f.last != 0 || f.report {
		t.Errorf("the faults are %+v, want none", f)
	}
}
