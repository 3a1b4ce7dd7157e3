package e2e

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// threeTiers is a Compose file: a page asks an API, which asks a database once a migration is done.
// Each finds the next one by its name alone.
const threeTiers = `name: shop
x-app: &app
  image: docker-archive:image.tar
  restart: always
services:
  front:
    <<: *app
    ports: ["80:8080"]
    tty: true
    depends_on: {api: {condition: service_healthy}}
  api:
    <<: *app
    container_name: Shop_API
    environment: {TEXT: "${GREETING} of the API"}
    expose: [8080]
    depends_on: {migrate: {condition: service_completed_successfully}}
    healthcheck:
      test: [CMD, /app/echo, udp, "127.0.0.1:7007", x]
      interval: 1s
      timeout: 5s
  migrate:
    <<: *app
    restart: "no"
    command: [udp, "db:7007", hello]
    depends_on: {db: {condition: service_healthy}}
  db:
    <<: *app
    environment: {TEXT: of the database}
    expose: ["8080", "7007/udp"]
    healthcheck:
      test: [CMD, /app/echo, udp, "127.0.0.1:7007", x]
      interval: 1s
      timeout: 5s
`

func TestAComposeFileIsServed(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	config := v1.Config{Entrypoint: []string{"/app/echo"}}
	p.SaveImage("image.tar", p.Image(runtime.GOARCH, config, p.EchoLayer()))
	p.Write(".env", "GREETING=page\n")
	file := p.Write("compose.yaml", threeTiers)
	has(t, p.PandoFails(3, "deploy", "--strict", file), "compose.yaml:9:5: services.front.tty")
	has(t, p.Pando("convert", file), "tenant: shop", `TEXT: "page of the API"`, "kind: job",
		"migrate: completed")

	p.Pando("deploy", "--wait", file)
	vips := map[pando.ServiceName]string{}
	phases := map[pando.ServiceName]pando.ServicePhase{}
	for _, name := range []pando.ServiceName{"front", "api", "migrate", "db"} {
		key := pando.ServiceKey{Tenant: "shop", Name: name}
		st, err := p.API(p.Host()).Service(p.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		vips[name], phases[name] = st.VIP, st.Phase
	}
	if phases["migrate"] != pando.ServiceCompleted || phases["front"] != pando.ServiceServing {
		t.Errorf("the services are %v", phases)
	}
	page := "http://" + vips["front"] + ":8080/get?url=http://shop_api:8080/"
	got := p.Must(labtest.Client, "curl", "-sS", "-m", "10", page)
	got = strings.TrimSpace(got)
	if !strings.Contains(got, "api-") || !strings.HasSuffix(got, "page of the API") {
		t.Errorf("the page asks the API and gets %q", got)
	}
	page = "http://localhost/get?url=http://api:8080/get?url=http://db:8080/"
	got = p.Must(p.Host(), "curl", "-sS", "-m", "10", page)
	if !strings.HasSuffix(strings.TrimSpace(got), "of the database") {
		t.Errorf("the API asks the database and gets %q", got)
	}
	t.Run("needs", func(t *testing.T) { needsOfServices(p.In(t)) })
}

// needsOfServices deploys services that wait, and one that would wait for itself.
func needsOfServices(p *labtest.Pando) {
	spec := func(name, needs string) string {
		return p.Write(name+".yaml", labtest.Echo(name, "needs: "+needs))
	}
	p.WithEcho()
	p.Pando("deploy", spec("web", "{store: healthy}"))
	const waits = "it waits for store to be healthy, and there is no such service: deploy it"
	has(p, p.Pando("why", "web", "--pending"), waits)
	has(p, p.PandoFails(7, "deploy", "--wait", "--timeout", "2s", filepath.Join(p.Dir, "web.yaml")),
		"waiting: web: "+waits)
	has(p, p.PandoFails(3, "deploy", spec("store", "[web]")), "store needs web needs store")
	p.Pando("deploy", "--wait", p.Write("store.yaml", labtest.Echo("store")))
	p.Pando("deploy", "--wait", filepath.Join(p.Dir, "web.yaml"))
}
