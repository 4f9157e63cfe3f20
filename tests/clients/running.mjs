// Cases of a client: one line a case, `ok NAME` or `not ok NAME: why`. Ends the program.
export async function run(cases) {
  let failed = 0;
  for (const [name, one] of Object.entries(cases)) {
    try {
      await one();
      console.log(`ok ${name}`);
    } catch (err) {
      failed += 1;
      console.log(`not ok ${name}: ${JSON.stringify(String(err?.stack ?? err).slice(0, 400))}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
