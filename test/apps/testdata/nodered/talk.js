// Stores a flow that answers by a websocket, or talks to it: talk.js PREPARED ADDRESS put|get.
const [prepared, address, verb] = process.argv.slice(2);
const WebSocket = require(prepared + '/nodered/node_modules/ws');

const flow = [
	{id: 'tab', type: 'tab', label: 'words'},
	{id: 'at', type: 'websocket-listener', path: '/words', wholemsg: 'false'},
	{id: 'in', type: 'websocket in', z: 'tab', server: 'at', client: '', wires: [['word']]},
	{id: 'word', type: 'change', z: 'tab', rules: [{t: 'set', p: 'payload', pt: 'msg', to: 'aspen', tot: 'str'}],
		wires: [['out']]},
	{id: 'out', type: 'websocket out', z: 'tab', server: 'at', client: '', wires: []},
];

async function put() {
	const answer = await fetch(`http://${address}:1880/flows`, {method: 'POST', body: JSON.stringify(flow),
		headers: {'Content-Type': 'application/json'}});
	console.log(answer.status === 204 ? 'stored' : await answer.text());
}

function get() {
	const socket = new WebSocket(`ws://${address}:1880/words`);
	socket.on('open', () => socket.send('a word, please'));
	socket.on('message', (text) => { console.log(String(text)); socket.close(); });
	socket.on('error', (error) => console.log(error.message));
}

({put, get})[verb]();
